"""Streams that go on after a break, and requests that are repeated, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.api import recordings
from service.core.errors import EngineFailure
from service.runtime import INSTANCE
from tests.api.test_bad_input import check_problem
from tests.api.test_tenants import entry, key, tenants
from tests.support.live import Live, config, eventually, live, parse_sse
from tests.support.scripted import ScriptedGenerator, ScriptStep

STREAM = "/answer/stream?question=Who&route=direct"
BODY = {"question": "Who?", "route": "direct"}
KEY = {"Idempotency-Key": '"k-1"'}


def gated() -> tuple[ScriptedGenerator, asyncio.Event]:
    """It says one word, and the second after the gate is opened."""
    gate = asyncio.Event()
    return ScriptedGenerator([ScriptStep(reply="Vincenzo Bellini", gate=gate)]), gate


async def first_events(service: Live, many: int, **request: Any) -> list[str]:
    """Begin a stream, read so many events and break off. The ids of those read."""
    request = {"method": "GET", "url": STREAM} | request
    ids: list[str] = []
    async with service.http.request(**request) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"id: "):
                ids.append(line[4:].strip().decode())
                if len(ids) == many:
                    response.close()
                    return ids
    raise AssertionError("the stream ended early")


async def resume(service: Live, last: str, **headers: str) -> list[tuple[str, Any]]:
    headers = {"Last-Event-ID": last} | headers
    response = await service.get(STREAM, headers=headers)
    assert response.status == 200, response.text
    return parse_sse(response.text)


async def test_a_broken_stream_goes_on_where_it_broke_and_the_question_is_asked_once() -> None:
    engine, gate = gated()
    async with live(engine) as service:
        ids = await first_events(service, 2)
        again = asyncio.create_task(resume(service, ids[0]))
        await asyncio.sleep(0.05)
        gate.set()
        rest = await again
        whole = await resume(service, ids[0])
        assert [name for name, _ in rest][-2:] == ["answer", "done"]
        assert rest == whole
        body = next(data["body"] for name, data in rest if name == "answer")
        assert (body["answer"], body["id"]) == ("Vincenzo Bellini", ids[0].rpartition("-")[0])
        seqs = [data["seq"] for _, data in rest]
        assert seqs == list(range(1, len(rest) + 1))
        assert len(engine.requests) == 1
        last = f"{body['id']}-{seqs[-1]}"
        assert (await service.get(STREAM, headers={"Last-Event-ID": last})).status == 204


async def test_nobody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "GRACE_S", 0.1)
    engine, _ = gated()
    async with live(engine) as service:
        ids = await first_events(service, 2)
        assert engine.running == 1
        await eventually(lambda: engine.running == 0)
        await eventually(lambda: service.app.state.admission.running == 0)
        events = await resume(service, ids[-1])
        assert [name for name, _ in events][-2:] == ["error", "done"]


async def test_reconnects_that_find_nothing_say_why(tmp_path: Path) -> None:
    settings = tenants(tmp_path, entry("a"), entry("b"))
    async with live(settings=settings) as service:
        events = parse_sse((await service.get(STREAM, headers=key("a"))).text)
        answer_id = events[0][1]["id"]
        cases = [
            ("a", f"{INSTANCE}-abc-1", 410, "answer-gone"),
            ("b", f"{answer_id}-0", 410, "answer-gone"),
            ("a", "0f0f0f-abc-1", 409, "answer-elsewhere"),
            ("a", "nonsense", 400, "malformed-request"),
        ]
        for tenant, last, status, slug in cases:
            headers = key(tenant) | {"Last-Event-ID": last}
            check_problem(await service.get(STREAM, headers=headers), status, slug)


async def test_a_repeated_request_is_answered_once() -> None:
    engine, gate = gated()
    async with live(engine) as service:

        async def ask(**fields: Any) -> tuple[int, str]:
            response = await service.post("/answer", json=BODY | fields, headers=KEY)
            return response.status, response.text

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(), 0.2)  # a client that gives up, and tries again
        first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
        await asyncio.sleep(0.05)
        gate.set()
        assert await first == await second == await ask()
        assert (await first)[0] == 200
        assert len(engine.requests) == 1
        status, problem = await ask(question="Where?")
        assert (status, "idempotency-key-reused" in problem) == (422, True)


async def test_a_repeated_request_is_no_other_question_of_its_tenant(tmp_path: Path) -> None:
    engine = ScriptedGenerator([ScriptStep(reply="Bellini")])
    settings = tenants(tmp_path, entry("a", questions_per_minute=1, requests_per_minute=4))
    async with live(engine, settings=settings) as service:

        async def ask(**headers: str) -> tuple[int, str]:
            got = await service.post("/answer", json=BODY, headers=key("a") | headers)
            return got.status, got.headers["RateLimit"]

        told = [await ask(**KEY) for _ in range(3)]
        assert [status for status, _ in told] == [200, 200, 200]
        assert '"questions";r=0' in told[0][1]
        assert ["questions" in left for _, left in told[1:]] == [False, False]
        assert [left[:14] for _, left in told] == [
            '"requests";r=3',
            '"requests";r=2',
            '"requests";r=1',
        ]
        assert (await ask(**{"Idempotency-Key": "another"}))[0] == 429


async def test_a_key_that_two_waiting_questions_share_takes_no_place_for_good() -> None:
    gate = asyncio.Event()
    engine = ScriptedGenerator([ScriptStep(reply="Bellini", gate=gate, times=None)])
    async with live(engine, settings=config(server={"max_running": 2})) as service:
        admission = service.app.state.admission
        running = [asyncio.create_task(service.post("/answer", json=BODY)) for _ in range(2)]
        await eventually(lambda: admission.running == 2)
        waiting = [
            asyncio.create_task(service.post("/answer", json=BODY | {"question": q}, headers=KEY))
            for q in ("Who?", "Where?")
        ]
        await eventually(lambda: admission.waiting == 2)
        gate.set()
        statuses = [(await each).status for each in (*running, *waiting)]
        assert sorted(statuses) == [200, 200, 200, 422]
        await eventually(lambda: admission.running == 0)


async def test_a_failed_question_is_asked_again_with_the_same_key() -> None:
    engine = ScriptedGenerator(
        [ScriptStep(reply=EngineFailure("it is down")), ScriptStep(reply="Bellini")]
    )
    async with live(engine) as service:
        statuses = []
        for _ in range(3):
            response = await service.post("/answer", json=BODY, headers=KEY)
            statuses.append((response.status, response.json().get("answer")))
    assert statuses == [(503, None), (200, "Bellini"), (200, "Bellini")]


async def test_a_posted_stream_with_a_key_can_be_repeated_and_resumed() -> None:
    engine, gate = gated()
    async with live(engine) as service:
        post = {"method": "POST", "url": "/answer/stream", "json": BODY, "headers": KEY}
        ids = await first_events(service, 2, **post)
        gate.set()
        again = await service.post("/answer/stream", json=BODY, headers=KEY)
        whole = parse_sse(again.text)
        headers = {"Last-Event-ID": ids[1]}
        rest = parse_sse((await service.post("/answer/stream", json=BODY, headers=headers)).text)
        assert rest == whole[2:]
        assert [whole[0][0], whole[-1][0]] == ["start", "done"]
        assert len(engine.requests) == 1


async def test_without_a_key_a_posted_stream_ends_with_its_client() -> None:
    engine, _ = gated()
    async with live(engine) as service:
        ids = await first_events(service, 2, method="POST", url="/answer/stream", json=BODY)
        await eventually(lambda: engine.running == 0)
        headers = {"Last-Event-ID": ids[0]}
        check_problem(await service.get(STREAM, headers=headers), 410, "answer-gone")


async def test_a_stop_ends_recorded_questions_too() -> None:
    engine, _ = gated()
    async with live(engine) as service:
        task = asyncio.create_task(resume_all(service))
        await eventually(lambda: engine.running == 1)
        service.server.should_exit = True
        assert [name for name, _ in await task][-2:] == ["error", "done"]
    assert engine.running == 0


async def resume_all(service: Live) -> list[tuple[str, Any]]:
    return parse_sse((await service.get(STREAM)).text)
