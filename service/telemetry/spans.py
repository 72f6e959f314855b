"""Convert the events and calls of a question to OpenTelemetry spans. Needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service import __version__
from service.answer.calls import EngineCall, Role
from service.answer.events import AnswerReady, BaseEvent, Failed, RouteChosen, StepEnd, StepStart
from service.core.connections import NO_TRACE, OUTGOING
from service.core.domain import RetrieverName
from service.core.settings.server import TracingSettings
from service.retrieval.base import SearchResult

EXPORT_S: Final = 5.0  # time limit of one export in seconds
PATH: Final = "/v1/traces"
_CONTEXT: Final = TraceContextTextMapPropagator()


class Tracing:
    """Starts the trace of each question with one provider, and closes the provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("revelator", __version__)

    def question(self, answer_id: str, caller: Mapping[str, str]) -> QuestionTrace:
        """Start a question's span as a child of the caller's span in `caller`, which contains
        header fields."""
        return QuestionTrace(self._tracer, answer_id, caller)

    async def aclose(self) -> None:
        """Export the pending spans, for a few seconds at most."""
        await anyio.to_thread.run_sync(self._provider.shutdown)


def exporting(settings: TracingSettings) -> Tracing:
    """Return tracing that exports its spans to the collector of the settings (OTLP over HTTP)."""
    resource = Resource.create({"service.name": "revelator", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    endpoint = (settings.url or "").rstrip("/").removesuffix(PATH) + PATH
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_S * 1000))
    return Tracing(provider)


class QuestionTrace:
    """The spans of one question, made from its events. A step's span starts with its first
    activity."""

    def __init__(self, tracer: Tracer, answer_id: str, caller: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._steps: dict[str, Span] = {}
        self._root = tracer.start_span(
            "question",
            context=_CONTEXT.extract(caller),
            kind=SpanKind.SERVER,
            attributes={"revelator.answer_id": answer_id},
        )
        self._outcome = "cancelled"

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._root.get_span_context().trace_id)

    @property
    def span_id(self) -> str:
        return trace.format_span_id(self._root.get_span_context().span_id)

    def see(self, event: BaseEvent) -> None:
        """Process one event, in order."""
        match event:
            case StepStart():
                self._step(event.step or "").set_attribute("revelator.step.kind", event.kind)
            case StepEnd():
                span = self._step(event.step or "")
                span.set_attribute("revelator.step.flags", list(event.flags))
                span.end()
                del self._steps[event.step or ""]
            case RouteChosen():
                chosen = {"route": event.route, "loop": event.loop, "route.by": event.by}
                self._root.set_attributes({f"revelator.{key}": chosen[key] for key in chosen})
            case AnswerReady(body=body):
                self._outcome = "answered" if body.answered else "unanswered"
                self._root.set_attribute("revelator.llm_calls", body.usage.llm_calls)
                self._root.set_attribute("revelator.retrievals", body.usage.retrievals)
            case Failed(problem=problem):
                self._outcome = "error"
                self._root.set_attribute("error.type", problem.type)
                self._root.set_status(Status(StatusCode.ERROR))

    def call(self, step: str, role: Role) -> Callable[[EngineCall], None]:
        """Start the span of an engine call, whose context is sent to the engine's server.

        Returns the function that ends it.
        """
        span = self._below(step, f"generation {role.name}", SpanKind.CLIENT)
        span.set_attribute("gen_ai.operation.name", "chat")
        span.set_attribute("revelator.engine", role.generator.name)
        if role.model is not None:
            span.set_attribute("gen_ai.request.model", role.model)
        fields: dict[str, str] = {}
        _CONTEXT.inject(fields, trace.set_span_in_context(span))
        OUTGOING.set(fields)

        def end(call: EngineCall) -> None:
            OUTGOING.set(NO_TRACE)
            if call.worker is not None:
                span.set_attribute("revelator.worker", call.worker)
            if call.finish is not None:
                span.set_attribute("gen_ai.response.finish_reasons", [call.finish])
            if call.usage is not None:
                span.set_attribute("gen_ai.usage.input_tokens", call.usage.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", call.usage.completion_tokens)
            span.end()

        return end

    def search(self, step: str, retriever: RetrieverName) -> Callable[[SearchResult | None], None]:
        """Start the span of a search.

        Returns the function that ends it, with the result, or with None if the search failed.
        """
        span = self._below(step, "retrieval", SpanKind.INTERNAL)
        span.set_attribute("revelator.retriever", retriever)

        def end(result: SearchResult | None) -> None:
            if result is None:
                span.set_status(Status(StatusCode.ERROR))
            else:
                span.set_attribute("revelator.passages", len(result.passages))
                span.set_attribute("revelator.degraded", list(result.missing))
            span.end()

        return end

    def end(self) -> None:
        """End the question's span, and those of its unfinished steps."""
        for span in reversed(self._steps.values()):
            span.end()
        self._root.set_attribute("revelator.outcome", self._outcome)
        self._root.end()

    def _below(self, step: str, name: str, kind: SpanKind) -> Span:
        context = trace.set_span_in_context(self._step(step))
        return self._tracer.start_span(name, context=context, kind=kind)

    def _step(self, step: str) -> Span:
        """Return the open span of a step. Its parent is the span of the parent step: 3 for step
        3.1."""
        if step not in self._steps:
            owner, within = self._root, step
            while "." in within and owner is self._root:
                within = within.rpartition(".")[0]
                owner = self._steps.get(within, self._root)
            self._steps[step] = self._tracer.start_span(
                f"step {step}", context=trace.set_span_in_context(owner)
            )
        return self._steps[step]
