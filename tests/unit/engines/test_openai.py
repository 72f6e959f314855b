"""Calls of servers that speak OpenAI's protocol, over real sockets: bodies, replies, failures."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
import pytest
from aiohttp import web

from service.core.concurrency import closing
from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    EngineLimited,
    EngineRefusal,
    EngineTimeout,
)
from service.core.metrics import Metrics
from service.core.settings import EngineSettings
from service.engines import openai, vllm
from service.engines.base import Completion, GenerationRequest, Message, TokenUsage, complete
from service.engines.encoding import simplest
from service.engines.factory import open_generator
from service.engines.openai import OpenAIGenerator
from tests.stubs.closing_server import ClosingServer
from tests.stubs.openai_server import StubServer
from tests.support.live import eventually

SCHEMA = {"type": "array", "items": {"type": "string"}}
CHOICES = ("true", "false")
PARIS = "It is Paris ."
MEGABYTE = b" " * 1_000_000
JSON = "application/json"


@asynccontextmanager
async def engine_on(*servers: StubServer, **settings: Any) -> AsyncIterator[OpenAIGenerator]:
    values = {"kind": "openai", "urls": [server.url for server in servers], **settings}
    own = EngineSettings.model_validate(values)
    kind = vllm.VllmGenerator if own.kind == "vllm" else OpenAIGenerator
    generator = kind("remote", own)
    try:
        async with asyncio.timeout(60):
            yield generator
    finally:
        await generator.aclose()


@asynccontextmanager
async def remote(
    settings: dict[str, Any] | None = None, stub: type[StubServer] = StubServer, **server: Any
) -> AsyncIterator[tuple[StubServer, OpenAIGenerator]]:
    async with stub(**server) as opened, engine_on(opened, **(settings or {})) as generator:
        yield opened, generator


def ask(text: str = "Who?", **fields: Any) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),), **fields)


async def test_a_chat_call_says_everything_explicitly() -> None:
    async with remote({"key": "secret-key"}) as (server, generator):
        request = GenerationRequest(
            messages=(Message("system", "Short."), Message("user", "who \ud800 is it?")),
            max_tokens=9,
            seed=5,
            stop=("\n",),
            logprobs=True,
        )
        completion = await complete(generator, request)

    assert completion == Completion(PARIS, "stop", TokenUsage(7, 4), -2.0)
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    assert server.bodies == [
        {
            "model": "stub-model",
            "messages": [
                {"role": "system", "content": "Short."},
                {"role": "user", "content": "who ? is it?"},  # UTF-8 has no half surrogates
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


@pytest.mark.parametrize(
    ("asked", "settings", "model", "listings"),
    [("adapter", {"model": "base"}, "adapter", 0), (None, {"model": "base"}, "base", 0),
     (None, {}, "first", 1)],
)  # fmt: skip
async def test_the_model_is_the_requests_then_the_settings_then_the_servers(
    asked: str | None, settings: dict[str, str], model: str, listings: int
) -> None:
    async with remote(settings, models=("first", "second")) as (server, generator):
        await complete(generator, ask(model=asked))

    assert (server.bodies[0]["model"], server.listings) == (model, listings)


OF_CHOICES = {
    "type": "object",
    "properties": {"choice": {"type": "string", "enum": list(CHOICES)}},
    "required": ["choice"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("request_fields", "settings", "owner", "reply", "text", "sent"),
    [
        ({"choices": CHOICES}, {}, "vllm", "true", "true",
         {"structured_outputs": {"choice": list(CHOICES)}}),
        ({"json_schema": SCHEMA}, {}, "vllm", '["a"]', '["a"]',
         {"structured_outputs": {"json": SCHEMA}}),
        ({"choices": CHOICES}, {}, "stub", '{"choice": "true"}', "true",
         {"response_format": OF_CHOICES}),
        ({"json_schema": SCHEMA}, {}, "stub", '["a"]', '["a"]', {"response_format": SCHEMA}),
        ({"choices": CHOICES}, {"constrained": "none"}, "vllm", "true", "true", {}),
    ],
)  # fmt: skip
async def test_how_an_output_is_constrained(
    request_fields: dict[str, Any], settings: dict[str, Any], owner: str, reply: str, text: str,
    sent: dict[str, Any],
) -> None:  # fmt: skip
    async with remote(settings, reply=reply, owned_by=owner) as (server, generator):
        completion = await complete(generator, ask(**request_fields, max_tokens=2 + len(reply)))

    body = server.bodies[0]
    names = ("structured_outputs", "response_format")
    found = {name: body[name] for name in names if name in body}
    if "response_format" in found:
        found["response_format"] = found["response_format"]["json_schema"]["schema"]
    assert (completion.text, found) == (text, sent)
    assert body["max_tokens"] > 10 or "choices" not in request_fields  # room for the label


async def test_a_server_that_refuses_constraints_is_asked_without_from_then_on() -> None:
    async with remote(reply="Sure: true", rejects=("response_format",)) as (server, generator):
        assert generator.capabilities.choices
        for _ in range(2):
            assert (await complete(generator, ask(choices=CHOICES))).text == "Sure: true"
        assert not generator.capabilities.choices
        assert generator.capabilities.json_schema
        assert ["response_format" in body for body in server.bodies] == [True, False, False]

    async with remote(failure=400) as (server, generator):  # for another reason
        with pytest.raises(EngineFailure, match="answered 400: the stub was told to fail"):
            await complete(generator, ask(choices=("a", "b")))
        assert generator.capabilities.choices


@pytest.mark.parametrize(
    ("server", "usage"), [({"usage": False}, TokenUsage(0, 4)), ({"dialect": "json"}, None)]
)
async def test_servers_that_do_not_count_or_do_not_stream(
    server: dict[str, Any], usage: TokenUsage | None
) -> None:
    async with remote(**server) as (_, generator):
        completion = await complete(generator, ask())

    assert (completion.text, completion.usage) == (PARIS, usage or TokenUsage(7, 4))


# ---- chat templates that take no system message, or no two turns of one role in a row

CHAT = (
    Message("system", "Be short."),
    Message("user", "Who?"),
    Message("user", "When?"),
    Message("assistant", "Hm."),
    Message("user", "Well?"),
)
PLAIN = [
    {"role": "user", "content": "Be short.\nWho?\n\nWhen?"},
    {"role": "assistant", "content": "Hm."},
    {"role": "user", "content": "Well?"},
]
OF_TURNS = GenerationRequest(messages=CHAT)
PAIR = (Message("user", "Who?"), Message("assistant", "Hm."))


def test_the_simplest_form_loses_nothing() -> None:
    assert [{"role": m.role, "content": m.content} for m in simplest(CHAT)] == PLAIN
    alone = [Message("system", "Be short.")]
    assert simplest(alone) == alone
    assert simplest(PAIR) == list(PAIR)


def roles_must_alternate(body: dict[str, Any]) -> str | None:
    roles = [message["role"] for message in body["messages"]]
    wanted = ["user", "assistant"] * len(roles)
    return None if roles == wanted[: len(roles)] else "Conversation roles must alternate"


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_what_the_template_refuses_is_asked_without_and_remembered(status: int) -> None:
    async with remote(refuses=roles_must_alternate, refusal=status) as (server, generator):
        for _ in range(2):
            assert (await complete(generator, OF_TURNS)).text == PARIS

    assert [len(body["messages"]) for body in server.bodies] == [5, 3, 3]
    assert server.bodies[1]["messages"] == server.bodies[2]["messages"] == PLAIN


async def test_calls_that_are_refused_together_are_all_asked_again() -> None:
    together = asyncio.Barrier(4)

    class Together(StubServer):
        async def _answer(self, request: Any, body: dict[str, Any]) -> Any:
            if len(self.bodies) <= together.parties:
                await together.wait()
            return await super()._answer(request, body)

    async with remote(stub=Together, refuses=roles_must_alternate) as (server, generator):
        answers = await asyncio.gather(*(complete(generator, OF_TURNS) for _ in range(4)))

    assert [answer.text for answer in answers] == [PARIS] * 4
    assert [len(body["messages"]) for body in server.bodies] == [5] * 4 + [3] * 4


async def test_a_refused_constraint_is_not_taken_for_the_template() -> None:
    async with remote(reply="true", rejects=("response_format",)) as (server, generator):
        for _ in range(2):
            request = GenerationRequest(messages=CHAT, choices=CHOICES)
            assert (await complete(generator, request)).text == "true"

    assert [len(body["messages"]) for body in server.bodies] == [5, 3, 3, 5]


@pytest.mark.parametrize(
    ("status", "said", "sizes"),
    [(400, "the context is full", [5, 3, 2]), (500, "no memory", [5, 2])],
)  # fmt: skip
async def test_a_refusal_of_another_kind_is_told_in_its_own_words(
    status: int, said: str, sizes: list[int]
) -> None:
    async with remote(refuses=lambda body: said, refusal=status) as (server, generator):
        for request in (OF_TURNS, GenerationRequest(messages=PAIR)):
            with pytest.raises(EngineFailure, match=said):
                await complete(generator, request)

    assert [len(body["messages"]) for body in server.bodies] == sizes  # and nothing is learned


# ---- failures


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("17", 17), ("Sun, 06 Nov 1994 08:49:37 GMT", 0), ("soon", 5), ("9" * 5000, 5), (None, 5)],
)
async def test_a_server_that_limits_says_for_how_long(header: str | None, seconds: int) -> None:
    async with remote({"model": "m"}, failure=429, retry_after=header) as (_, generator):
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
    ("silent", r"sent no data for 1 s"),
]


@pytest.mark.parametrize(("failure", "said"), FAILURES)
async def test_each_failure_is_named_and_the_next_call_works(failure: Any, said: str) -> None:
    tries = 2 if failure == "drop" else 1
    settings = {"model": "m", "timeout_s": 1.0 if failure == "silent" else 30.0}
    async with remote(settings, failure=failure, failures=tries) as (server, generator):
        with pytest.raises(EngineFailure, match=said) as raised:
            await complete(generator, ask())
        assert isinstance(raised.value, EngineTimeout) == (failure == "silent")
        await eventually(lambda: server.running == 0)
        assert (await complete(generator, ask())).text == PARIS

    assert f"engine 'remote' at http://127.0.0.1:{server.port}/v1" in raised.value.detail


async def test_a_slow_answer_is_no_silence() -> None:
    async with remote({"timeout_s": 1.5, "model": "m"}, token_delay=0.5) as (_, generator):
        assert (await complete(generator, ask())).text == PARIS


async def test_keys_never_show_and_errors_are_short() -> None:
    body = orjson.dumps({"error": {"message": "bad key secret-key " + "x" * 999}}).decode()
    settings = {"key": "secret-key", "model": "m"}
    async with remote(settings, failure=401, error_body=body) as (_, generator):
        with pytest.raises(EngineFailure) as raised:
            await complete(generator, ask())

    assert "secret-key" not in raised.value.detail
    assert len(raised.value.detail) < 400


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [(b"SSH-2.0-OpenSSH_9.2\r\n", EngineFailure, "did not send a valid HTTP response"),
     (b"", EngineTimeout, r"sent no data for 1 s")],
)  # fmt: skip
async def test_what_does_not_speak_http_is_named(
    said: bytes, kind: type[EngineFailure], message: str
) -> None:
    done = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        if not said:
            await done.wait()
        writer.close()

    listener = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    async with (
        listener,
        engine_on(urls=[url], model="m", timeout_s=30.0 if said else 1.0) as generator,
    ):
        with pytest.raises(kind, match=message):
            await complete(generator, ask())
        done.set()


async def test_a_dead_server_is_replaced_by_the_next_one() -> None:
    async with StubServer() as dead:
        pass
    async with StubServer() as alive, engine_on(dead, alive, model="m") as generator:
        for _ in range(2):
            assert (await complete(generator, ask())).text == PARIS

    assert alive.requests == 2


async def test_check_tells_what_is_wrong() -> None:
    async with StubServer(owned_by="vllm", models=("base",)) as server:
        for settings, said in (
            ({}, None),
            ({"model": "base"}, None),
            ({"model": "other"}, "other"),
        ):
            async with engine_on(server, **settings) as generator:
                if said is None:
                    await generator.check()
                else:
                    with pytest.raises(EngineFailure, match=r"does not serve 'other', but base"):
                        await generator.check()
    async with engine_on(server) as generator:
        with pytest.raises(EngineFailure, match="did not accept the connection"):
            await generator.check()
    with pytest.raises(ConfigurationError, match=r"engines\.remote.*needs urls"):
        open_generator("remote", EngineSettings(kind="openai"))


async def test_a_check_keeps_no_call_waiting() -> None:
    async with StubServer(owned_by="vllm", models=("base",)) as server, engine_on(server) as asked:
        await complete(asked, ask(choices=("yes", "no")))
        server.listing_delay = 60
        checking = asyncio.create_task(asked.check())
        await eventually(lambda: server.listings == 2)
        async with asyncio.timeout(10):
            await complete(asked, ask(choices=("yes", "no")))
        checking.cancel()
        with suppress(asyncio.CancelledError):
            await checking
        await complete(asked, ask(choices=("yes", "no")))
        assert [body["model"] for body in server.bodies] == ["base"] * 3
        assert server.listings == 2


# ---- connections


async def test_calls_are_bounded_and_a_cancelled_one_gives_its_place_back() -> None:
    settings = {"model": "m", "max_concurrency": 3}
    async with remote(settings, token_delay=0.02) as (server, generator):
        calls = [asyncio.ensure_future(complete(generator, ask())) for _ in range(9)]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        await asyncio.wait(calls)

    assert server.most_running == 3
    assert sum(not call.cancelled() for call in calls) == 8


@pytest.mark.parametrize("end_delay", [0.0, 0.02])
async def test_a_finished_answer_leaves_its_connection_to_the_next_call(end_delay: float) -> None:
    ports = set()

    async with remote({"model": "m"}, reply="Paris", end_delay=end_delay) as (_, generator):
        for _ in range(4):
            await complete(generator, ask())
            session = generator._connections._kept
            assert session is not None
            connector: Any = session.connector
            await eventually(lambda pools=connector._conns: any(pools.values()))  # type: ignore[misc]
            ports |= {
                str(handler.transport.get_extra_info("sockname"))
                for pool in connector._conns.values()
                for handler, _ in pool
            }

    assert len(ports) == 1


async def test_nobody_waits_for_the_end_of_a_finished_answer() -> None:
    async with remote({"model": "m"}, reply="Paris", end_delay=30.0) as (server, generator):
        async with asyncio.timeout(10):
            assert (await complete(generator, ask())).text == "Paris"
        assert server.running == 1


async def test_a_call_that_meets_closed_connections_is_answered() -> None:
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ClosingServer(together=3))
        settings = EngineSettings(kind="openai", urls=[f"{server.url}/v1"], model="m")
        generator = open_generator("remote", settings, metrics)
        stack.push_async_callback(generator.aclose)
        await asyncio.gather(*(complete(generator, ask()) for _ in range(3)))
        assert (await complete(generator, ask())).text == "Paris"

    assert metrics.registry.get_sample_value("revelator_resent_calls_total") == 1
    assert server.requests == 5


async def test_closing_ends_calls_in_mid_answer_and_those_that_the_server_keeps_silent() -> None:
    async with (
        remote({"model": "m"}, token_delay=0.05) as (_, generator),
        closing(generator.stream(ask())) as deltas,
    ):
        await anext(deltas)
        await generator.aclose()
        with pytest.raises(EngineFailure):
            async for _ in deltas:
                pass
    async with remote({"model": "m", "timeout_s": 600.0}, failure="silent") as (server, generator):
        call = asyncio.create_task(complete(generator, ask()))
        await eventually(lambda: server.running == 1)
        await generator.aclose()
        with pytest.raises(EngineFailure, match="lost the connection"):
            await call


# ---- bodies that come in pieces, break off, or have no end


async def send(
    request: web.Request, pieces: Sequence[bytes], status: int, kind: str, *, end: str = "end"
) -> web.StreamResponse:
    """Send a body in pieces, with a pause after each of them. `end`: it may also `break` off there,
    or `hang`.
    """
    response = web.StreamResponse(status=status, headers={"Content-Type": kind})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0.05)
    if end == "hang":
        await asyncio.sleep(3600)
    if end == "break":
        assert request.transport is not None
        request.transport.abort()
    return response


class Pieces(StubServer):
    """Sends the text of an error in two pieces."""

    end = "end"

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await super()._answer(request, body)
        if not isinstance(response, web.Response):
            return response
        assert isinstance(response.body, bytes)
        pieces = [response.body[:20], response.body[20:]]
        return await send(request, pieces, response.status, JSON, end=self.end)


@pytest.mark.parametrize("end", ["break", "hang", "hang until closed"])
async def test_an_error_whose_text_does_not_end_is_told_as_far_as_it_came(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes = end == "hang until closed"
    monkeypatch.setattr(openai, "_ERROR_S", 600.0 if closes else 1.5)
    text = "the context is full" + " " * 9
    async with remote({"timeout_s": 600.0}, Pieces, failure=400, error_body=text) as (server, own):
        server.end = end.partition(" ")[0]  # type: ignore[attr-defined]
        call = asyncio.create_task(complete(own, ask()))
        if closes:
            await eventually(lambda: server.running == 1)
            await asyncio.sleep(0.2)
            await own.aclose()
            with pytest.raises(EngineFailure, match="lost the connection"):
                await call
        else:
            with pytest.raises(EngineRefusal, match="answered 400: the context is full"):
                await call


class Endless(StubServer):
    """Has no end to any body; a list of models may come in `pieces` instead."""

    pieces: Sequence[bytes] = ()

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await send(request, [MEGABYTE] * 6, 200, JSON, end="hang")

    async def _info(self, request: web.Request) -> Any:
        return await self._answer(request, {})

    async def _models(self, request: web.Request) -> Any:
        return await send(request, self.pieces, 200, JSON)


async def test_bodies_without_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "LARGEST_REPLY", 2_000_000)
    body = orjson.dumps({"data": [{"id": "stub-model"}]})
    async with Endless() as server, engine_on(server, kind="vllm") as worker:
        assert isinstance(worker, vllm.VllmGenerator)
        server.pieces = [body[:9], body[9:]]
        assert (await worker._learn()).models == ("stub-model",)
        calls: list[tuple[Callable[[], Awaitable[Any]], str]] = [
            (partial(complete, worker, ask()), "4,000,000"), (worker.plugin_info, "2,000,000")
        ]  # fmt: skip
        for call, most in calls:
            with pytest.raises(EngineFailure, match=f"sent a body of more than {most} bytes"):
                await call()
        server.pieces, worker._server = [MEGABYTE] * 6, None
        with pytest.raises(EngineFailure, match="a body of more than 4,000,000 bytes"):
            await worker.check()


async def test_what_follows_the_end_of_a_reply_is_not_kept() -> None:
    class Talkative(StubServer):
        sent = 0

        async def _end(self, response: web.StreamResponse, *more: Any) -> None:
            await response.write(b"data: [DONE]\n\n")
            with suppress(ConnectionError):
                while self.sent < 60:
                    await response.write(MEGABYTE)
                    self.sent += 1

    async with Talkative() as server, engine_on(server) as generator:
        tracemalloc.start()
        try:
            await complete(generator, ask())
            await eventually(lambda: not generator._ending)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert server.sent > 12
    assert peak < 8_000_000


@pytest.mark.parametrize("dialect", ["sse", "json"])
async def test_a_reply_of_100_kb_is_cut_where_no_token_of_the_call_can_be(dialect: Any) -> None:
    async with remote(reply="a" * 100_000, dialect=dialect) as (_, generator):
        completion = await complete(generator, ask(max_tokens=64))
        assert 64 < len(completion.text) < 4_000
        assert completion.finish == "length"
        assert (await complete(generator, ask(max_tokens=64))).finish == "length"
