"""`/answer` and `/answer/stream`: bodies, events, and that the one is the fold of the other."""

from __future__ import annotations

import json
from typing import Any

from service.core.errors import EngineFailure, RetrievalFailure
from tests.support.asking import ScriptedRetriever
from tests.support.live import Live, answering, config, live, parse_sse
from tests.support.scripted import ScriptStep


def check_grammar(events: list[tuple[str, Any]]) -> None:
    """`start` first, `answer` or `error` once, then `done`; numbered from 0, time never back."""
    names = [name for name, _ in events]
    assert names[0] == "start"
    assert names.count("start") == names.count("done") == 1
    assert names[-1] == "done"
    assert sum(name in ("answer", "error") for name in names) == 1
    assert names[-2] in ("answer", "error")
    assert [data["seq"] for _, data in events] == list(range(len(events)))
    times = [data["ms"] for _, data in events]
    assert times == sorted(times)
    assert all("event" not in data for _, data in events)
    opened = names.index("step") if "step" in names else len(names)
    assert all("step" not in data for _, data in events[:opened])
    assert all(data["step"] for _, data in events[opened:])


async def test_get_streams_the_same_events_for_event_source(service: Live) -> None:
    query = {
        "question": "Who composed Norma?", "route": "single", "top_k": "1",
        "filter": json.dumps({"year": [1831]}),
    }  # fmt: skip
    response = await service.get("/answer/stream", params=query)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    wire = parse_sse(response.text)
    check_grammar(wire)
    body = next(data["body"] for name, data in wire if name == "answer")
    assert body["route"] == "single"
    assert [p["passage_id"] for p in body["steps"][0]["passages"]] == ["norma"]


async def test_event_ids_carry_the_answer_id_and_the_number(service: Live) -> None:
    body = {"question": "Who?"}
    response = await service.post("/answer/stream", json=body)
    lines = response.text.splitlines()
    request_id = response.headers["x-request-id"]
    ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    assert ids == [f"{request_id}-{number}" for number in range(len(ids))]


async def test_line_breaks_of_unicode_do_not_break_an_event() -> None:
    odd = "one\u2028two\u2029three\x85four"
    async with live(answering([odd])) as service:
        wire = await service.stream(odd)
    assert wire[0][1]["question"] == odd
    body = next(data["body"] for name, data in wire if name == "answer")
    assert body["question"] == odd


async def test_engine_and_store_failures_end_the_stream_and_the_body_alike() -> None:
    async def both(script: list[ScriptStep], retriever: ScriptedRetriever, slug: str) -> None:
        async with live(script, retriever=retriever) as service:
            reply = await service.post("/answer", json={"question": "Who?"})
            wire = await service.stream()
        check_grammar(wire)
        problem = next(data["problem"] for name, data in wire if name == "error")
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert problem["type"] == reply.json()["type"] == f"urn:revelator:problem:{slug}"

    down = [ScriptStep(match=None, reply=EngineFailure("the engine is out"), times=None)]
    await both(down, ScriptedRetriever(), "engine-unavailable")
    out = ScriptedRetriever({"": RetrievalFailure("both are out")})
    await both(answering(), out, "retrieval-unavailable")


async def test_an_unexpected_failure_is_a_problem_without_its_secrets() -> None:
    script = [ScriptStep(match=None, reply=RuntimeError("password hunter2"), times=None)]
    chat = {"model": "revelator", "messages": [{"role": "user", "content": "Who?"}]}
    async with live(script) as service:
        status, body = await service.ask()
        told = await service.post("/v1/chat/completions", json=chat)
    assert (status, told.status) == (500, 500)
    assert body["type"] == "urn:revelator:problem:internal"
    assert told.json()["error"]["type"] == "server_error"
    assert "hunter2" not in json.dumps(body) + told.text  # ids are hexadecimal


async def test_a_missing_retriever_is_named_and_counted() -> None:
    async with live(retriever=ScriptedRetriever(missing=("dense",))) as service:
        _, body = await service.ask("Who composed Norma?")
        counted = await service.metric('revelator_degraded_total{backend="dense"}')
    assert body["degraded"] == ["dense"]
    assert counted == 1


async def test_too_little_time_and_nothing_to_say_is_504() -> None:
    script = [ScriptStep(match=None, reply="x", delay=5.0, times=None)]
    async with live(script, settings=config()) as service:
        status, body = await service.ask(timeout_s=0.2)
    assert (status, body["type"]) == (504, "urn:revelator:problem:deadline")


async def test_a_search_has_a_time_limit() -> None:
    retriever = ScriptedRetriever()
    retriever.delay = 60.0
    async with live(retriever=retriever, settings=config(limits={"timeout_s": 0.1})) as service:
        response = await service.post("/search", json={"query": "Norma"})
    assert response.status == 504
    assert response.json()["type"].endswith(":deadline")
    assert "timeout_s; try again" in response.json()["detail"]
