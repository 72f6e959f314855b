"""The pool over stub servers on real sockets: who answers, and what a bad worker costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from unittest import mock

import pytest

from service.core.concurrency import closing, gather
from service.core.errors import EngineFailure, EngineInterrupted, EngineRefusal
from service.core.settings import EngineSettings
from service.engines import workers as limits
from service.engines.base import GenerationRequest, Profile, complete
from service.engines.factory import open_generator
from service.engines.pool import PoolGenerator
from service.engines.workers import PoolLimits
from service.vllm_plugin import PROTOCOL
from tests.stubs.openai_server import StubServer
from tests.support.live import eventually
from tests.support.observed import Observed

SOON = {"probe_s": 0.2}  # a probe has no more time, so only where one is to fail


@asynccontextmanager
async def pool_of(
    *servers: StubServer,
    seen: Observed | None = None,
    pool: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[PoolGenerator]:
    settings = EngineSettings.model_validate(
        {"kind": "vllm", "urls": [server.url for server in servers], "timeout_s": 5.0,
         **more}
    )  # fmt: skip
    with mock.patch.object(limits, "LIMITS", PoolLimits(**pool or {})):
        made = open_generator("workers", settings, seen)
    assert isinstance(made, PoolGenerator)
    try:
        yield made
    finally:
        await made.aclose()


@asynccontextmanager
async def stubs(count: int, **options: Any) -> AsyncIterator[list[StubServer]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(StubServer(owned_by="vllm", **options))
            for _ in range(count)
        ]


def ask(question: str = "", **more: Any) -> GenerationRequest:
    return GenerationRequest(prompt="Where?", question=question, **more)


def name_of(server: StubServer) -> str:
    return f"127.0.0.1:{server.port}"


async def test_a_question_stays_at_one_worker_and_questions_spread() -> None:
    async with stubs(3) as servers, pool_of(*servers) as pool:
        await pool.check()
        for _ in range(4):
            await complete(pool, ask("one"))
        assert sorted(server.requests for server in servers) == [0, 0, 4]

        for number in range(150):
            await complete(pool, ask(f"q{number}"))
        assert min(server.requests for server in servers) > 15


async def test_calls_at_once_spread_by_their_tokens() -> None:
    async with stubs(2, token_delay=0.05) as servers, pool_of(*servers) as pool:
        await pool.check()
        await gather([lambda: complete(pool, ask()) for _ in range(10)])

        assert [server.requests for server in servers] == [5, 5]


@pytest.mark.parametrize("failure", ["drop", "garbage", "html", "no_choices", "error_event", 500])
async def test_what_fails_before_any_output_is_made_again_elsewhere(failure: Any) -> None:
    seen = Observed()
    async with stubs(2) as (bad, good), pool_of(bad, good, seen=seen) as pool:
        bad.failure = failure
        for number in range(30):  # of which some are the bad one's, whatever the ports
            whole = await complete(pool, ask(f"q{number}"))
            assert whole.text == "It is Paris ."

    assert bad.requests
    assert set(seen.failures) == {name_of(bad)}
    assert set(seen.flights.values()) == {0}


async def test_what_is_lost_in_mid_output_is_interrupted() -> None:
    async with stubs(1) as (server,), pool_of(server) as pool:
        server.failure = "cut"
        async with closing(pool.stream(ask())) as out:
            shown = [(await anext(out)).text, (await anext(out)).text]
            with pytest.raises(EngineInterrupted):
                await anext(out)

    assert shown == ["It", " is"]
    assert server.requests == 1


async def test_a_question_does_not_meet_the_worker_again_that_lost_its_call() -> None:
    async with stubs(2) as servers, pool_of(*servers, pool={"eject_after": 100}) as pool:
        await pool.check()
        await complete(pool, ask("q"))
        home, other = sorted(servers, key=lambda server: -server.requests)
        home.failure = "cut"
        with pytest.raises(EngineInterrupted):
            await complete(pool, ask("q"))
        assert (await complete(pool, ask("q"))).text == "It is Paris ."
        assert (home.requests, other.requests) == (2, 1)


async def test_a_call_that_is_wrong_is_refused_once() -> None:
    seen = Observed()
    async with stubs(2, failure=400) as servers, pool_of(*servers, seen=seen) as pool:
        with pytest.raises(EngineRefusal, match="400"):
            await complete(pool, ask())
        assert sum(server.requests for server in servers) == 1
        assert seen.failures == []
        await pool.check()


async def test_a_worker_that_fails_is_ejected_and_comes_back() -> None:
    seen = Observed()
    async with stubs(2) as (bad, good), pool_of(bad, good, seen=seen, pool=SOON) as pool:
        await pool.check()
        bad.failure, bad.health = 500, 500
        await eventually(lambda: (name_of(bad), "ejected") in seen.phases)
        before = bad.requests
        for number in range(20):
            await complete(pool, ask(f"q{number}"))
        assert bad.requests == before

        bad.failure, bad.health = None, 200
        await eventually(lambda: seen.phases[-1] == (name_of(bad), "up"))


async def test_a_silent_worker_loses_its_calls_when_a_probe_finds_it_out() -> None:
    """Not when the call's own silence ends, which is much later."""
    async with stubs(2) as (bad, good), pool_of(bad, good, timeout_s=600.0, pool=SOON) as pool:
        await pool.check()
        bad.failure = "silent"
        calls = asyncio.gather(*(complete(pool, ask(f"q{n}")) for n in range(10)))
        await eventually(lambda: bad.running > 0)
        bad.health = 500
        assert {whole.text for whole in await calls} == {"It is Paris ."}


async def test_all_workers_down_says_so_and_recovers() -> None:
    async with stubs(1) as (server,), pool_of(server, pool=SOON | {"outage_s": 0.3}) as pool:
        await pool.check()
        server.health = 503
        await eventually(lambda: pool.workers()[0].phase == "ejected")

        with pytest.raises(EngineFailure, match=r"no worker.*ejected.*/health answered 503"):
            await complete(pool, ask())
        with pytest.raises(EngineFailure, match="no worker"):
            await pool.check()

        server.health = 200
        await eventually(lambda: pool.workers()[0].phase == "up")
        assert (await complete(pool, ask())).text == "It is Paris ."


async def test_a_call_that_waits_for_a_place_fails_when_the_pool_is_closed() -> None:
    async with (
        stubs(1, failure="silent") as (server,),
        pool_of(server, max_concurrency=1, timeout_s=600.0, pool={"probe_s": 5.0}) as pool,
    ):
        await pool.check()
        calls = [asyncio.create_task(complete(pool, ask(f"q{n}"))) for n in range(2)]
        await eventually(lambda: server.running == 1)

        await pool.aclose()

        async with asyncio.timeout(10):
            for failure in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(failure, EngineFailure)
        assert server.requests == 1
        with pytest.raises(EngineFailure, match="closed"):
            await pool.check()


async def test_calls_go_only_where_the_model_is_served() -> None:
    async with stubs(2) as (one, other), pool_of(one, other, model="absent") as pool:
        other.models = ("stub-model", "adapter")
        for number in range(6):
            await complete(pool, ask(f"q{number}", model="adapter"))
        assert (one.requests, other.requests) == (0, 6)
        with pytest.raises(EngineFailure, match="serves stub-model, not absent"):
            await pool.check()


async def test_priority_is_asked_for_until_the_server_says_that_it_has_none() -> None:
    async with stubs(1, rejects=("priority",)) as (server,), pool_of(server) as pool:
        server.error_body = "{}"
        for turn in range(4):
            await complete(pool, ask("q", turn=turn))

    asked = [body.get("priority") for body in server.bodies]
    assert asked == [None, -1, None, None, None]


async def test_a_call_names_its_question_and_its_first_delta_the_worker() -> None:
    async with (
        stubs(1) as (server,),
        pool_of(server) as pool,
        closing(pool.stream(ask("q7"))) as out,
    ):
        named = [delta.worker async for delta in out]

    assert server.headers[0]["x-session-id"] == "q7"
    assert named == [name_of(server), *[None] * (len(named) - 1)]


async def test_a_caller_that_leaves_aborts_its_call_at_the_worker() -> None:
    seen = Observed()
    async with stubs(1, token_delay=0.2) as (server,), pool_of(server, seen=seen) as pool:
        async with closing(pool.stream(ask())) as out:
            await anext(out)
        await eventually(lambda: server.aborted == 1)

    assert seen.flights == {name_of(server): 0}


async def test_the_table_of_workers() -> None:
    async with (
        stubs(3) as (one, other, older),
        pool_of(one, other, older, pool={"outage_s": 0.1}) as pool,
    ):
        older.info = {"protocol": PROTOCOL - 1, "signals": True}
        other.version = "0.31.0"
        other.info = {"protocol": PROTOCOL, "signals": False, "reason": "a part of vLLM has moved"}
        await pool.check()
        rows = {row.name: row for row in pool.workers()}
        with pytest.raises(EngineFailure, match="no token signals: a part of vLLM has moved"):
            await complete(pool, ask(signals="entropy"))

    assert rows[name_of(older)].trouble == (
        f"its plugin uses protocol {PROTOCOL - 1}, not {PROTOCOL}; update the older side"
    )

    first, second = rows[name_of(one)], rows[name_of(other)]
    assert first.profile == Profile(("stub-model",), is_vllm=True, version="0.32.0")
    assert first.trouble is None
    assert second.profile.version == "0.31.0"
    assert second.phase == "up"
    assert second.trouble == "a part of vLLM has moved"
