from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from service.core.concurrency import closing
from service.core.errors import EngineFailure, EngineLimited, EngineTimeout
from service.core.settings import EngineSettings
from service.engines.base import Delta, GenerationRequest, Message, TokenUsage, complete
from service.engines.openai import OpenAIGenerator
from tests.stubs.closing_server import ClosingServer
from tests.stubs.openai_server import StubServer

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "array", "items": {"type": "string"}}


def engine(*servers: StubServer, **settings: Any) -> OpenAIGenerator:
    values = {"kind": "openai", "urls": [server.url for server in servers], **settings}
    return OpenAIGenerator("remote", EngineSettings.model_validate(values))


def ask(text: str = "Who?", **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


async def one(server: StubServer, request: GenerationRequest, **settings: Any) -> str:
    async with closing_engine(engine(server, **settings)) as generator:
        return (await complete(generator, request)).text


class closing_engine:
    def __init__(self, generator: OpenAIGenerator) -> None:
        self.generator = generator

    async def __aenter__(self) -> OpenAIGenerator:
        return self.generator

    async def __aexit__(self, *_: object) -> None:
        await self.generator.aclose()


async def eventually(condition: Any, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (the stub has no event to wait for)
            await asyncio.sleep(0.01)


async def test_a_chat_call_says_everything_explicitly() -> None:
    async with (
        StubServer(reply="It is Paris.") as server,
        closing_engine(engine(server, key="secret-key")) as generator,
    ):
        request = GenerationRequest(
            messages=(Message("system", "Short."), Message("user", "Who?")),
            max_tokens=9,
            seed=5,
            stop=("\n",),
            logprobs=True,
        )
        completion = await complete(generator, request)

    assert completion.text == "It is Paris."
    assert completion.usage == TokenUsage(7, 3)
    assert completion.logprob == pytest.approx(-1.5)
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    assert server.bodies == [
        {
            "model": "stub-model",
            "messages": [
                {"role": "system", "content": "Short."},
                {"role": "user", "content": "Who?"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 9,
            "temperature": 0.0,
            "seed": 5,
            "stop": ["\n"],
            "logprobs": True,
        }
    ]


async def test_a_raw_prompt_goes_to_completions() -> None:
    async with (
        StubServer(reply="Paris it is") as server,
        closing_engine(engine(server)) as generator,
    ):
        completion = await complete(
            generator, GenerationRequest(prompt="The capital", max_tokens=2, logprobs=True)
        )

    assert (completion.text, completion.finish) == ("Paris it", "length")
    assert completion.logprob == pytest.approx(-1.0)
    assert server.bodies[0]["prompt"] == "The capital"


async def test_the_model_is_the_requests_then_the_settings_then_the_servers() -> None:
    async with StubServer(models=("first", "second")) as server:
        await one(server, ask(model="adapter"), model="base")
        await one(server, ask(), model="base")
        await one(server, ask())

    assert [body["model"] for body in server.bodies] == ["adapter", "base", "first"]
    assert server.listings == 1


async def test_choices_in_vllms_fields_when_the_server_is_one() -> None:
    async with (
        StubServer(reply="true", owned_by="vllm") as server,
        closing_engine(engine(server)) as generator,
    ):
        await asyncio.gather(
            *(complete(generator, ask(choices=("true", "false"))) for _ in range(5))
        )
        await complete(generator, ask(json_schema=SCHEMA))

    assert server.bodies[0]["structured_outputs"] == {"choice": ["true", "false"]}
    assert server.bodies[-1]["structured_outputs"] == {"json": SCHEMA}
    assert server.listings == 1


async def test_choices_by_a_schema_elsewhere_come_unwrapped() -> None:
    async with StubServer(reply='{"choice": "true"}') as server:
        text = await one(server, ask(choices=("true", "false"), max_tokens=2))

    form = server.bodies[0]["response_format"]["json_schema"]
    assert text == "true"
    assert form["schema"]["properties"]["choice"]["enum"] == ["true", "false"]
    assert server.bodies[0]["max_tokens"] > 10


async def test_a_schema_goes_into_response_format() -> None:
    async with StubServer(reply='["a"]') as server:
        assert await one(server, ask(json_schema=SCHEMA)) == '["a"]'

    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == SCHEMA


async def test_a_server_that_refuses_constraints_is_asked_without_from_then_on() -> None:
    async with (
        StubServer(reply="Sure: true", rejects=("response_format",)) as server,
        closing_engine(engine(server)) as generator,
    ):
        assert generator.capabilities.choices
        for _ in range(2):
            completion = await complete(generator, ask(choices=("true", "false")))
            assert completion.text == "Sure: true"
        assert not generator.capabilities.choices
        assert generator.capabilities.json_schema

    assert ["response_format" in body for body in server.bodies] == [True, False, False]


async def test_a_refusal_for_another_reason_is_a_failure_and_changes_nothing() -> None:
    async with StubServer(failure=400) as server, closing_engine(engine(server)) as generator:
        with pytest.raises(EngineFailure, match="answered 400: the stub was told to fail"):
            await complete(generator, ask(choices=("a", "b")))
        assert generator.capabilities.choices


async def test_no_constraints_where_the_setting_says_none() -> None:
    async with StubServer(reply="true", owned_by="vllm") as server:
        await one(server, ask(choices=("true",)), constrained="none", model="m")

    assert not {"response_format", "structured_outputs"} & set(server.bodies[0])
    assert server.listings == 0


async def test_without_counts_the_deltas_are_counted() -> None:
    async with (
        StubServer(reply="It is Paris", usage=False) as server,
        closing_engine(engine(server)) as generator,
    ):
        completion = await complete(generator, ask())

    assert completion.usage == TokenUsage(0, 3)


async def test_a_server_that_does_not_stream_is_read_too() -> None:
    async with (
        StubServer(reply="It is Paris", dialect="json") as server,
        closing_engine(engine(server)) as generator,
    ):
        completion = await complete(generator, ask())

    assert (completion.text, completion.usage) == ("It is Paris", TokenUsage(7, 3))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("17", 17), ("Sun, 06 Nov 1994 08:49:37 GMT", 0), ("soon", 5), (None, 5)],
)
async def test_a_server_that_limits_says_for_how_long(header: str | None, seconds: int) -> None:
    async with (
        StubServer(failure=429, retry_after=header) as server,
        closing_engine(engine(server, model="m")) as generator,
    ):
        with pytest.raises(EngineLimited) as raised:
            await complete(generator, ask())

    assert raised.value.retry_after == seconds


FAILURES = [
    (401, "answered 401.*engines.remote.key"),
    (404, "answered 404.*model's name"),
    (429, "answered 429.*max_concurrency"),
    (500, "answered 500: the stub was told to fail; check the server's log"),
    (302, "answered 302"),
    ("drop", "closed the connection"),
    ("cut", "closed the connection|ended its response early"),
    ("garbage", "invalid JSON"),
    ("html", "no server-sent events"),
    ("no_choices", "no choices"),
    ("error_event", "failed during its response: out of memory"),
]


@pytest.mark.parametrize(("failure", "said"), FAILURES)
async def test_each_failure_is_named_and_the_next_call_works(failure: Any, said: str) -> None:
    tries = 2 if failure == "drop" else 1
    async with (
        StubServer(failure=failure, failures=tries) as server,
        closing_engine(engine(server, model="m")) as generator,
    ):
        with pytest.raises(EngineFailure, match=said) as raised:
            await complete(generator, ask())
        assert (await complete(generator, ask())).text == "It is Paris ."

    assert f"engine 'remote' at http://127.0.0.1:{server.port}/v1" in raised.value.detail


async def test_silence_is_a_timeout() -> None:
    async with (
        StubServer(failure="silent", failures=1) as server,
        closing_engine(engine(server, model="m", timeout_s=0.2)) as generator,
    ):
        with pytest.raises(EngineTimeout, match=r"sent no data for 0\.2 s"):
            await complete(generator, ask())
        await eventually(lambda: server.running == 0)
        assert (await complete(generator, ask())).text == "It is Paris ."


async def test_a_slow_answer_is_no_silence() -> None:
    async with StubServer(token_delay=0.1, reply="a b c d e") as server:
        assert await one(server, ask(), timeout_s=0.3, model="m") == "a b c d e"


async def test_keys_never_show_and_errors_are_short() -> None:
    body = orjson.dumps({"error": {"message": "bad key secret-key " + "x" * 999}}).decode()
    async with StubServer(failure=401, error_body=body) as server:
        with pytest.raises(EngineFailure) as raised:
            await one(server, ask(), key="secret-key", model="m")

    assert "secret-key" not in raised.value.detail
    assert len(raised.value.detail) < 400


async def test_what_does_not_speak_http_is_named() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(babble, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    async with listener, closing_engine(engine(urls=[url], model="m")) as generator:
        with pytest.raises(EngineFailure, match="did not send a valid HTTP response"):
            await complete(generator, ask())


async def test_a_server_that_never_answers_is_a_timeout() -> None:
    done = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        await done.wait()
        writer.close()

    listener = await asyncio.start_server(mute, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    generator = engine(urls=[url], model="m", timeout_s=0.2)
    async with listener, closing_engine(generator):
        with pytest.raises(EngineTimeout, match=r"sent no data for 0\.2 s"):
            await complete(generator, ask())
        done.set()


async def test_a_dead_server_is_replaced_by_the_next_one() -> None:
    async with StubServer() as dead:
        pass
    async with StubServer() as alive, closing_engine(engine(dead, alive, model="m")) as generator:
        for _ in range(2):
            assert (await complete(generator, ask())).text == "It is Paris ."

    assert alive.requests == 2


@pytest.mark.parametrize("way", ["close", "cancel"])
async def test_leaving_aborts_the_call_at_the_server(way: str) -> None:
    async with (
        StubServer(reply="word " * 500, token_delay=0.02) as server,
        closing_engine(engine(server, model="m")) as generator,
    ):
        stream = generator.stream(ask(max_tokens=500))
        first: asyncio.Task[Delta] = asyncio.ensure_future(anext(stream))
        await first
        if way == "close":
            await stream.aclose()
        else:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        await eventually(lambda: server.aborted == 1)

    assert server.running == 0


async def test_calls_are_bounded_and_a_cancelled_one_gives_its_place_back() -> None:
    async with (
        StubServer(token_delay=0.02) as server,
        closing_engine(engine(server, model="m", max_concurrency=3)) as generator,
    ):
        calls = [asyncio.ensure_future(complete(generator, ask())) for _ in range(9)]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        await asyncio.wait(calls)

    assert server.most_running == 3
    assert sum(not call.cancelled() for call in calls) == 8


@pytest.mark.parametrize("end_delay", [0.0, 0.02])
async def test_a_finished_answer_leaves_its_connection_to_the_next_call(end_delay: float) -> None:
    ports = set()

    async with (
        StubServer(reply="Paris", end_delay=end_delay) as server,
        closing_engine(engine(server, model="m")) as generator,
    ):
        for _ in range(4):
            await complete(generator, ask())
            session = generator._connections._kept
            assert session is not None
            connector: Any = session.connector
            await eventually(lambda pools=connector._conns: any(pools.values()))
            ports |= {
                str(handler.transport.get_extra_info("sockname"))
                for pool in connector._conns.values()
                for handler, _ in pool
            }

    assert len(ports) == 1


async def test_nobody_waits_for_the_end_of_a_finished_answer() -> None:
    async with (
        StubServer(reply="Paris", end_delay=30.0) as server,
        closing_engine(engine(server, model="m")) as generator,
    ):
        async with asyncio.timeout(10):
            assert (await complete(generator, ask())).text == "Paris"
        assert server.running == 1


async def test_a_call_that_meets_closed_connections_is_answered() -> None:
    resent = []
    async with ClosingServer(together=3) as server:
        settings = EngineSettings(kind="openai", urls=[f"{server.url}/v1"], model="m")
        generator = OpenAIGenerator("remote", settings, lambda: resent.append(1))
        async with closing_engine(generator):
            await asyncio.gather(*(complete(generator, ask()) for _ in range(3)))
            assert (await complete(generator, ask())).text == "Paris"

    assert len(resent) == 1
    assert server.requests == 5


async def test_check_tells_what_is_wrong() -> None:
    async with StubServer(owned_by="vllm", models=("base",)) as server:
        await engine_check(server)
        await engine_check(server, model="base")
        with pytest.raises(EngineFailure, match=r"does not serve 'other', but base"):
            await engine_check(server, model="other")
    with pytest.raises(EngineFailure, match="did not accept the connection"):
        await engine_check(server)


async def engine_check(server: StubServer, **settings: Any) -> None:
    async with closing_engine(engine(server, **settings)) as generator:
        await generator.check()


async def test_half_a_surrogate_does_not_break_a_call() -> None:
    async with StubServer() as server:
        await one(server, ask("who \ud800 is it"), model="m")

    assert server.bodies[0]["messages"][0]["content"] == "who ? is it"


async def test_after_closing_calls_fail_cleanly() -> None:
    async with StubServer(token_delay=0.05) as server:
        generator = engine(server, model="m")
        async with closing(generator.stream(ask())) as deltas:
            await anext(deltas)
            await generator.aclose()
            await generator.aclose()
            with pytest.raises(EngineFailure):
                async for _ in deltas:
                    pass
        with pytest.raises(EngineFailure, match="closed"):
            await complete(generator, ask())


async def test_closing_ends_a_call_that_the_server_keeps_silent() -> None:
    async with StubServer(failure="silent") as server:
        generator = engine(server, model="m", timeout_s=600.0)
        call = asyncio.create_task(complete(generator, ask()))
        await eventually(lambda: server.running == 1)

        await generator.aclose()

        with pytest.raises(EngineFailure, match="lost the connection"):
            await call


@pytest.mark.parametrize("dialect", ["sse", "json"])
async def test_a_reply_of_100_kb_is_cut_where_no_token_of_the_call_can_be(dialect: Any) -> None:
    async with (
        StubServer(reply="a" * 100_000, dialect=dialect) as server,
        closing_engine(engine(server)) as generator,
    ):
        completion = await complete(generator, ask(max_tokens=64))
        assert 64 < len(completion.text) < 4_000
        assert completion.finish == "length"
        assert (await complete(generator, ask(max_tokens=64))).finish == "length"
