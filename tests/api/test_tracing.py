"""Traces of questions: what spans there are, whose they are, and where they are sent."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from service.core.errors import EngineFailure
from service.core.settings import EngineSettings, Settings
from service.engines.base import Generator
from service.engines.factory import open_generator
from service.telemetry.logs import configure_logging
from tests.conftest import need
from tests.stubs.openai_server import StubServer
from tests.support.live import Live, answering, config, live
from tests.support.scripted import ScriptStep
from tests.support.stub_server import stub_server

need("opentelemetry.sdk", "opentelemetry.exporter")

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

from service.telemetry.spans import Tracing  # noqa: E402

pytestmark = pytest.mark.usefixtures("restored_logging")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "vendor=1"}
QUESTION = "Who was the mayor of Quokkatown?"


@asynccontextmanager
async def traced(
    engine: Any = None, **given: Any
) -> AsyncIterator[tuple[Live, InMemorySpanExporter]]:
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with live(engine, **given) as service:
        service.app.state.runtime.tracing = Tracing(provider)
        yield service, spans


@asynccontextmanager
async def asking(server: StubServer) -> AsyncIterator[Generator]:
    settings = EngineSettings.model_validate({"kind": "openai", "urls": [server.url]})
    engine = open_generator("default", settings)
    try:
        yield engine
    finally:
        await engine.aclose()


def tree(spans: Sequence[ReadableSpan]) -> dict[str, list[str]]:
    """The names of the spans below each span, in order of their beginning."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    below: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        owner = names.get(span.parent.span_id, "caller") if span.parent else "nobody"
        below.setdefault(owner, []).append(span.name)
    return below


def named(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    return next(span for span in spans if span.name == name)


async def test_a_question_its_steps_its_searches_and_its_calls_are_one_tree() -> None:
    async with traced() as (service, exporter):
        status, body = await service.ask(QUESTION)
        assert status == 200
    spans = exporter.get_finished_spans()
    below = tree(spans)
    assert below["nobody"] == ["question"]
    assert below["question"][:2] == ["step 1", "step 2"]
    assert below["step 1"] == ["generation revelator"]
    assert "retrieval" in below["step 2"]
    assert "generation reader" in below["step 2"]
    root = named(spans, "question").attributes or {}
    assert root["revelator.answer_id"] == body["id"]
    assert root["revelator.outcome"] == "answered"
    assert root["revelator.llm_calls"] == body["usage"]["llm_calls"]
    reader = named(spans, "generation reader").attributes or {}
    assert reader["gen_ai.usage.output_tokens"] == 2
    assert "Quokkatown" not in "".join(span.to_json() for span in spans)


async def test_parts_of_a_compound_question_have_their_calls_below_them() -> None:
    script = [
        ScriptStep(match="Task: decompose", reply='["Who wrote Norma?", "Who was born in 1801?"]'),
        *answering(),
        ScriptStep(match="Task: merge", reply="Bellini and Bellini", times=None),
    ]  # fmt: skip
    async with traced(script) as (service, exporter):
        assert (await service.ask(QUESTION, route="compound"))[0] == 200
    below = tree(exporter.get_finished_spans())
    parts = [name for name in below if name.startswith("step ") and "." in name]
    assert len(parts) >= 2
    for name in parts:
        assert {"retrieval", "generation reader"} <= set(below[name])


async def test_the_callers_trace_goes_on_and_reaches_the_engine_and_the_log() -> None:
    stream = io.StringIO()
    async with StubServer() as server:
        async with asking(server) as engine, traced(engine) as (service, exporter):
            configure_logging("info", stream)
            body = {"question": QUESTION, "route": "direct"}
            assert (await service.post("/answer", json=body, headers=CALLER)).status == 200
        sent = [headers.get("traceparent", "") for headers in server.headers]
    spans = exporter.get_finished_spans()
    assert tree(spans)["caller"] == ["question"]
    call = named(spans, "generation reader").context
    assert call
    assert f"00-{TRACE}-{call.span_id:016x}-01" in sent
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (line,) = [line for line in lines if line["event"] == "question"]
    assert line["trace_id"] == TRACE
    root = named(spans, "question").context
    assert root
    assert line["span_id"] == f"{root.span_id:016x}"


async def test_what_fails_is_marked_and_its_words_are_not_kept() -> None:
    failing = [ScriptStep(reply=EngineFailure(f"refused {QUESTION}"), times=None)]
    async with traced(failing) as (service, exporter):
        status, _ = await service.ask(QUESTION, route="direct")
        assert status >= 500
    spans = exporter.get_finished_spans()
    root = named(spans, "question")
    assert root.status.status_code.name == "ERROR"
    assert (root.attributes or {})["revelator.outcome"] == "error"
    assert "Quokkatown" not in "".join(span.to_json() for span in spans)


async def test_a_question_that_is_broken_off_ends_its_spans() -> None:
    slow = [ScriptStep(reply="one two three", delay=5, times=None)]
    async with traced(slow) as (service, exporter):
        body = {"question": QUESTION, "route": "direct", "timeout_s": 0.2}
        assert (await service.post("/answer", json=body)).status == 504
    assert {"question", "step 1", "generation reader"} <= {
        span.name for span in exporter.get_finished_spans()
    }


async def test_spans_arrive_at_a_collector() -> None:
    received: list[otlp.ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        received.append(otlp.ExportTraceServiceRequest.FromString(body))
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    async with stub_server(app) as address:
        settings: Settings = config(tracing={"url": f"http://{address}"})
        async with live(settings=settings) as service:
            assert (await service.ask(QUESTION))[0] == 200
    names = [
        span.name
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {"question", "step 1", "retrieval", "generation reader"} <= set(names)


async def test_a_collector_that_is_not_there_delays_nobody() -> None:
    settings: Settings = config(tracing={"url": "http://127.0.0.1:9"})
    async with asyncio.timeout(20), live(settings=settings) as service:
        assert (await service.ask(QUESTION))[0] == 200


async def test_a_part_of_the_questions_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    settings: Settings = config(tracing={"url": "http://127.0.0.1:9"})
    async with live(settings=settings) as service:
        assert service.app.state.runtime.tracing is not None
        assert (await service.ask(QUESTION))[0] == 200


async def test_without_tracing_no_context_is_sent_on() -> None:
    async with StubServer() as server:
        async with asking(server) as engine, traced(engine) as (service, _):
            service.app.state.runtime.tracing = None
            body = {"question": QUESTION, "route": "direct"}
            response = await service.post("/answer", json=body, headers=CALLER)
            timing = response.headers["Server-Timing"]
            told = response.json()["timing_ms"]
        assert all("traceparent" not in headers for headers in server.headers)
    parts = dict(part.split(";dur=") for part in timing.split(", "))
    assert parts.keys() == {"total", "queue", "routing", "retrieval", "generation"}
    assert float(parts["total"]) == pytest.approx(told["total"], rel=1e-3)
