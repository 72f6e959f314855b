"""A marked question, its passages and the keys go through every path, errors included: no log line
at level info and no trace repeats them, and no error tells what a server said of them."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from service.core.domain import Passage
from service.core.errors import BackendUnavailable, EngineFailure, RetrievalFailure
from service.core.settings import Settings
from service.engines.base import Delta, GenerationRequest
from service.retrieval.base import SearchRequest, SearchResult
from service.telemetry.logs import configure_logging
from tests.conftest import need
from tests.stubs.fake_retriever import FakeRetriever
from tests.support.live import Live, Raw, answering, config, live
from tests.support.scripted import ScriptedGenerator, render

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("restored_logging")]

MARK = "Quokkatown"
QUESTION = f"Who was the mayor of {MARK}?"
PASSAGE = "Wombatville lies on the river Echidna"
KEY = "key-Numbatfield"
MARKS = (MARK, "Wombatville", "Numbatfield")


class Telling(ScriptedGenerator):
    """Fails with what it was sent, as servers do that refuse a call."""

    def __init__(self, failure: Callable[[str], Exception]) -> None:
        super().__init__()
        self._failure = failure

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        raise self._failure(render(request))
        yield Delta("")


class TellingRetriever(FakeRetriever):
    def __init__(self, failure: Callable[[str], Exception]) -> None:
        super().__init__()
        self._failure = failure

    async def search(self, request: SearchRequest) -> SearchResult:
        raise self._failure(f"cannot read [{request.query}]")


def caused(told: str) -> Exception:
    error = RuntimeError("for a reason")
    error.__cause__ = ExceptionGroup(told, [KeyError(told)])
    return error


FAILURES: dict[str, Callable[[str], Exception]] = {
    "a server's refusal": lambda told: EngineFailure(f"answered 400: {told[-300:]}"),
    "a refusal in JSON": lambda told: EngineFailure(f"answered 400: {json.dumps(told)[-300:]}"),
    "a store's refusal": RetrievalFailure,
    "a store that is out": BackendUnavailable,
    "what nobody expects": ValueError,
    "what nobody expects, for a reason": caused,
}


async def check_silent(
    path: Callable[[Live], Any], said: list[str], **given: Any
) -> list[dict[str, Any]]:
    """Run the path with the log at info; nothing of the marks is in the log or in `said`. Returns
    the log's lines."""
    stream = io.StringIO()
    settings: Settings = config(server={"keys": [KEY]})
    async with live(given.get("engine"), settings=settings, retriever=given.get("retriever")) as at:
        configure_logging("info", stream)
        at.http.headers["Authorization"] = f"Bearer {KEY}"
        spans = trace(at)
        await path(at)
    lines, traced = stream.getvalue(), spans()
    for mark in MARKS:
        assert mark not in lines
        assert mark not in traced
        assert mark not in "".join(said)
    return [json.loads(line) for line in lines.splitlines()]


def trace(at: Live) -> Callable[[], str]:
    """Keep the service's traces, where its extra is installed. Returns what reads all spans."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    except ImportError:
        return str
    from service.telemetry.spans import Tracing

    spans, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    at.app.state.runtime.tracing = Tracing(provider)
    return lambda: "".join(span.to_json() for span in spans.get_finished_spans())


def passages() -> FakeRetriever:
    return FakeRetriever({"sample": [Passage("p1", "Rivers", PASSAGE)]})


async def test_questions_that_are_answered() -> None:
    async def path(at: Live) -> None:
        assert (await at.ask(QUESTION))[0] == 200
        assert (await at.stream(QUESTION))[-1][0] == "done"
        assert "event: done" in (await at.get("/answer/stream", params={"question": QUESTION})).text

    lines = await check_silent(path, [], retriever=passages())
    assert [line["event"] for line in lines].count("question") == 3


@pytest.mark.parametrize("where", ["engine", "retriever"])
@pytest.mark.parametrize("name", FAILURES)
async def test_questions_that_fail(name: str, where: str) -> None:
    said: list[str] = []

    async def path(at: Live) -> None:
        status, body = await at.ask(QUESTION, route="single")
        said.append(body.get("detail", ""))
        events = await at.stream(QUESTION, route="single")
        said.extend(data["problem"]["detail"] for kind, data in events if kind == "error")
        assert status >= 500

    failure = FAILURES[name]
    given: dict[str, Any] = {"retriever": passages()}
    if where == "engine":
        given["engine"] = Telling(failure)
    else:
        given["retriever"] = TellingRetriever(failure)
    lines = await check_silent(path, said, **given)
    unexpected = [line for line in lines if line["event"] == "question failed"]
    for line in unexpected:
        assert "Traceback (most recent call last):" in line["exception"]
    assert bool(unexpected) == name.startswith("what nobody expects")


Told = tuple[bool, str]
"""Whether a question was answered, and what an error said."""


async def by_openai(at: Live, path: str, question: dict[str, Any], **fields: Any) -> Told:
    response = await at.post(path, json={"model": "revelator"} | question | fields)
    text = response.text
    if response.content_type != "text/event-stream":
        return response.status == 200, text if response.status != 200 else ""
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    failed = [each for each in chunks if each.get("error") or each.get("type") == "error"]
    failed += [
        each["response"]["error"] for each in chunks if each.get("type") == "response.failed"
    ]
    return not failed, json.dumps(failed) if failed else ""


def chat(at: Live, **fields: Any) -> Awaitable[Told]:
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    return by_openai(at, "/v1/chat/completions", asked, **fields)


def respond(at: Live, **fields: Any) -> Awaitable[Told]:
    return by_openai(at, "/v1/responses", {"input": QUESTION}, **fields)


async def by_mcp(at: Live, tool: str = "answer", **arguments: Any) -> Told:
    need("mcp")
    from tests.live.test_mcp_client import client_of

    async with client_of(at, KEY) as client:
        result = await client.call_tool(tool, arguments or {"question": QUESTION})
    return not result.is_error, result.content[0].text if result.is_error else ""


WAYS: dict[str, Callable[[Live], Awaitable[Told]]] = {
    "chat": chat,
    "chat, streamed": lambda at: chat(at, stream=True),
    "responses": respond,
    "responses, streamed": lambda at: respond(at, stream=True),
    "MCP": by_mcp,
}


@pytest.mark.parametrize("way", WAYS)
async def test_questions_by_other_interfaces(way: str) -> None:
    told: list[Told] = []

    async def path(at: Live) -> None:
        told.append(await WAYS[way](at))

    lines = await check_silent(path, [], retriever=passages())
    assert told == [(True, "")]
    assert [line["event"] for line in lines].count("question") == 1


@pytest.mark.parametrize("where", ["engine", "retriever"])
@pytest.mark.parametrize("name", ["a refusal in JSON", "what nobody expects, for a reason"])
@pytest.mark.parametrize("way", WAYS)
async def test_questions_by_other_interfaces_that_fail(way: str, name: str, where: str) -> None:
    said: list[str] = []

    async def path(at: Live) -> None:
        answered, error = await WAYS[way](at)
        assert not answered
        assert error
        said.append(error)

    failure = FAILURES[name]
    given: dict[str, Any] = {"retriever": passages()}
    if where == "engine":
        given["engine"] = Telling(failure)
    else:
        given["retriever"] = TellingRetriever(failure)
    await check_silent(path, said, **given)


async def test_a_search_that_fails_for_a_reason_nobody_expects() -> None:
    said: list[str] = []

    async def path(at: Live) -> None:
        found, error = await by_mcp(at, "search", query=QUESTION)
        assert not found
        said.append(error)

    lines = await check_silent(path, said, retriever=TellingRetriever(ValueError))
    assert "request failed" in [line["event"] for line in lines]


async def test_requests_of_other_interfaces_that_are_refused() -> None:
    said: list[str] = []
    asked: list[tuple[str, Any]] = [
        ("/v1/chat/completions", {"model": "x", "messages": [{"role": "user", "content": MARK}]}),
        ("/v1/chat/completions", {"model": "revelator", "messages": QUESTION}),
        ("/v1/chat/completions", {"model": "revelator", "messages": [{"role": QUESTION}]}),
        ("/v1/chat/completions", {"model": "revelator", "messages": [], "n": QUESTION}),
        ("/v1/responses", {"model": "revelator", "input": [QUESTION]}),
        ("/v1/responses", {"model": "revelator", "input": QUESTION * 200}),
        ("/v1/responses", QUESTION),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": QUESTION}),
        ("/mcp", QUESTION),
    ]

    async def path(at: Live) -> None:
        for url, body in asked:
            response = await at.post(url, json=body)
            if url == "/mcp":  # its protocol sends what was wrong back to who sent it
                assert "error" in response.text
            else:
                assert response.status >= 400
                said.append(response.text)
        wrong = {"Authorization": "Bearer Numbatfield"}
        for url in ("/v1/chat/completions", "/v1/responses", "/mcp"):
            response = await at.post(url, json={}, headers=wrong)
            assert response.status in (401, 403)
            said.append(response.text)

    await check_silent(path, said, retriever=passages())


async def test_tools_that_are_called_wrongly() -> None:
    said: list[str] = []
    wrong: list[dict[str, Any]] = [
        {"query": QUESTION * 200}, {"query": QUESTION, "top_k": MARK},
        {"query": QUESTION, "filter": MARK}, {"query": [QUESTION]},
    ]  # fmt: skip

    async def path(at: Live) -> None:
        for arguments in wrong:
            found, error = await by_mcp(at, "search", **arguments)
            assert not found
            said.append(error)

    await check_silent(path, said, retriever=passages())


async def test_requests_that_are_refused() -> None:
    said: list[str] = []
    bodies: list[Any] = [
        {"question": QUESTION * 200}, {"question": [QUESTION]},
        {"question": QUESTION, "top_k": MARK}, {"question": QUESTION, "loop": MARK},
        {"question": QUESTION, "filter": {"x": MARK}},
        {"question": QUESTION, "route": "direct", "loop": "anrag"}, QUESTION,
    ]  # fmt: skip

    async def path(at: Live) -> None:
        for body in bodies:
            response = await at.post("/answer", json=body)
            assert response.status == 422
            said.append(response.text)
        as_json = {"Content-Type": "application/json"}
        for data in (f'{{"question": "{MARK}', f'{{"question": "{MARK}"}}{MARK}'):
            response = await at.post("/answer", data=data, headers=as_json)
            assert response.status == 400
            said.append(response.text)
        query = {"question": QUESTION, "top_k": MARK}
        said.append((await at.get("/answer/stream", params=query)).text)
        for headers in (
            {"Authorization": "Bearer Numbatfield"},
            {"Authorization": "", "X-API-Key": "Numbatfield"},
        ):
            response = await at.post("/answer", json={}, headers=headers)
            assert response.status == 403
            said.append(response.text)

    await check_silent(path, said, retriever=passages())


async def test_connections_that_break() -> None:
    async def path(at: Live) -> None:
        for text in (f"GET /{MARK} {MARK}\r\n\r\n", f"POST /answer HTTP/1.1\r\n{MARK}\r\n\r\n"):
            raw = await Raw.ask(at.port, question=QUESTION)
            raw.writer.write(text.encode())
            await raw.close()
        at.http.headers.pop("Authorization")
        await at.ask(QUESTION)

    engine = ScriptedGenerator(answering(delay=0.05))
    await check_silent(path, [], engine=engine, retriever=passages())


async def test_at_level_debug_a_traceback_says_what_happened() -> None:
    stream = io.StringIO()
    async with live(Telling(lambda told: ValueError("a word"))) as at:
        configure_logging("debug", stream)
        await at.ask("Who?")
    assert "ValueError: a word" in stream.getvalue()
