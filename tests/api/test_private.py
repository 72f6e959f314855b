"""A marked question, its passages and the keys go through every path, errors included: no log line
at level info and no trace repeats them, and no error tells what a server said of them."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from service.core.domain import Passage
from service.core.errors import BackendUnavailable, EngineFailure, RetrievalFailure
from service.core.settings import Settings
from service.engines.base import Delta, GenerationRequest
from service.retrieval.base import SearchRequest, SearchResult
from service.telemetry.logs import configure_logging
from tests.conftest import need
from tests.support.asking import ScriptedRetriever
from tests.support.live import Live, Raw, answering, config, live
from tests.support.scripted import ScriptedGenerator, render

pytestmark = pytest.mark.usefixtures("restored_logging")

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


class TellingRetriever(ScriptedRetriever):
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


@asynccontextmanager
async def silent(
    engine: Any = None, retriever: ScriptedRetriever | None = None
) -> AsyncIterator[tuple[Live, list[str], list[dict[str, Any]]]]:
    """A service with its log at info, what it said, and at the end its log's lines: nothing of the
    marks is in them, or in a trace."""
    stream, said, lines = io.StringIO(), list[str](), list[dict[str, Any]]()
    settings: Settings = config(server={"keys": [KEY]})
    async with live(engine, settings=settings, retriever=retriever or passages()) as at:
        configure_logging("info", stream)
        at.http.headers["Authorization"] = f"Bearer {KEY}"
        spans = trace(at)
        yield at, said, lines
    for mark in MARKS:
        assert mark not in stream.getvalue()
        assert mark not in spans()
        assert mark not in "".join(said)
    lines += [json.loads(line) for line in stream.getvalue().splitlines()]


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


def passages() -> ScriptedRetriever:
    return ScriptedRetriever({"": [Passage("p1", "Rivers", PASSAGE)]})


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


async def own(at: Live) -> Told:
    status, body = await at.ask(QUESTION, route="single")
    return status == 200, body.get("detail", "")


async def own_stream(at: Live) -> Told:
    events = await at.stream(QUESTION, route="single")
    assert events[-1][0] == "done"
    failed = [data["problem"]["detail"] for kind, data in events if kind == "error"]
    return not failed, "".join(failed)


WAYS: dict[str, Callable[[Live], Awaitable[Told]]] = {
    "answer": own,
    "answer, streamed": own_stream,
    "chat": chat,
    "chat, streamed": lambda at: chat(at, stream=True),
    "responses": respond,
    "responses, streamed": lambda at: respond(at, stream=True),
    "MCP": by_mcp,
}


async def test_questions_that_are_answered() -> None:
    async with silent() as (at, _, lines):
        for way, ask in WAYS.items():
            assert await ask(at) == (True, ""), way
        assert "event: done" in (await at.get("/answer/stream", params={"question": QUESTION})).text
    assert [line["event"] for line in lines].count("question") == len(WAYS) + 1


@pytest.mark.parametrize("where", ["engine", "retriever"])
@pytest.mark.parametrize("name", FAILURES)
async def test_questions_that_fail(name: str, where: str) -> None:
    failure = FAILURES[name]
    engine = Telling(failure) if where == "engine" else None
    retriever = TellingRetriever(failure) if where == "retriever" else None
    async with silent(engine, retriever) as (at, said, lines):
        for way, ask in WAYS.items():
            answered, error = await ask(at)
            assert (answered, bool(error)) == (False, True), way
            said.append(error)
    unexpected = [line for line in lines if line["event"] == "question failed"]
    for line in unexpected:
        assert "Traceback (most recent call last):" in line["exception"]
    assert len(unexpected) == (len(WAYS) if name.startswith("what nobody expects") else 0)


async def test_a_search_that_fails_for_a_reason_nobody_expects() -> None:
    async with silent(retriever=TellingRetriever(ValueError)) as (at, said, lines):
        found, error = await by_mcp(at, "search", query=QUESTION)
        assert not found
        said.append(error)
    assert "request failed" in [line["event"] for line in lines]


WRONG_KEY = {"Authorization": "Bearer Numbatfield"}
AS_JSON = {"Content-Type": "application/json"}
# Paths, what is sent to them, and the statuses that it gets.
REFUSED: list[tuple[str, dict[str, Any], int]] = [
    *(("/answer", {"json": body}, 422) for body in (
        {"question": QUESTION * 200}, {"question": [QUESTION]},
        {"question": QUESTION, "top_k": MARK}, {"question": QUESTION, "loop": MARK},
        {"question": QUESTION, "filter": {"x": MARK}},
        {"question": QUESTION, "route": "direct", "loop": "anrag"}, QUESTION,
    )),
    ("/answer", {"data": f'{{"question": "{MARK}', "headers": AS_JSON}, 400),
    ("/answer", {"data": f'{{"question": "{MARK}"}}{MARK}', "headers": AS_JSON}, 400),
    ("/answer", {"json": {}, "headers": {"Authorization": "", "X-API-Key": "Numbatfield"}}, 403),
    *((path, {"json": {}, "headers": WRONG_KEY}, 403) for path in ("/answer", "/mcp")),
    *((path, {"json": {}, "headers": WRONG_KEY}, 401)
      for path in ("/v1/chat/completions", "/v1/responses")),
    ("/v1/chat/completions",
     {"json": {"model": "x", "messages": [{"role": "user", "content": MARK}]}}, 404),
    *(("/v1/chat/completions", {"json": {"model": "revelator"} | body}, 400) for body in (
        {"messages": QUESTION}, {"messages": [{"role": QUESTION}]},
        {"messages": [], "n": QUESTION},
    )),
    *(("/v1/responses", {"json": body}, 400) for body in (
        {"model": "revelator", "input": [QUESTION]}, QUESTION,
    )),
]  # fmt: skip


async def test_requests_that_are_refused() -> None:
    async with silent() as (at, said, _):
        for path, sent, status in REFUSED:
            response = await at.post(path, **sent)
            assert response.status == status, (path, sent)
            said.append(response.text)
        query = {"question": QUESTION, "top_k": MARK}
        said.append((await at.get("/answer/stream", params=query)).text)
        for body in ({"jsonrpc": "2.0", "id": 1, "method": QUESTION}, QUESTION):
            # this protocol sends what was wrong back to who sent it
            assert "error" in (await at.post("/mcp", json=body)).text
        for arguments in (
            {"query": QUESTION * 200}, {"query": QUESTION, "top_k": MARK},
            {"query": QUESTION, "filter": MARK}, {"query": [QUESTION]},
        ):  # fmt: skip
            found, error = await by_mcp(at, "search", **arguments)
            assert not found
            said.append(error)


async def test_connections_that_break() -> None:
    async with silent(ScriptedGenerator(answering(delay=0.05))) as (at, _, __):
        for text in (f"GET /{MARK} {MARK}\r\n\r\n", f"POST /answer HTTP/1.1\r\n{MARK}\r\n\r\n"):
            raw = await Raw.ask(at.port, question=QUESTION)
            raw.writer.write(text.encode())
            await raw.close()
        at.http.headers.pop("Authorization")
        await at.ask(QUESTION)


async def test_at_level_debug_a_traceback_says_what_happened() -> None:
    stream = io.StringIO()
    async with live(Telling(lambda told: ValueError("a word"))) as at:
        configure_logging("debug", stream)
        await at.ask("Who?")
    assert "ValueError: a word" in stream.getvalue()
