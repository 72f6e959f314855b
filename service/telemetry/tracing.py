"""OpenTelemetry traces of questions, disabled unless `tracing.url` is set.

The span of a question is a child of the caller's span if the request has a `traceparent`. Its
children are the spans of the steps, whose children are the spans of searches and engine calls.
Spans contain no text of questions, passages or answers. `service.telemetry.spans` creates them;
without tracing, OpenTelemetry is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from service.core.extras import importing
from service.core.settings.server import TracingSettings

if TYPE_CHECKING:
    from service.telemetry.spans import QuestionTrace, Tracing


def open_tracing(settings: TracingSettings) -> Tracing | None:
    """Return the tracing of questions, or None if it is disabled.

    Raises ConfigurationError without the extra `otel`.
    """
    if settings.url is None:
        return None
    with importing("tracing.url", "otel"):
        from service.telemetry.spans import exporting  # noqa: PLC0415
    return exporting(settings)


@contextmanager
def traced(
    tracing: Tracing | None, answer_id: str, caller: Mapping[str, str]
) -> Iterator[QuestionTrace | None]:
    """Trace one question.

    `caller` contains the header fields with the trace context. The subsequent log lines of this
    task contain the ids of the trace.
    """
    if tracing is None:
        yield None
        return
    trace = tracing.question(answer_id, caller)
    structlog.contextvars.bind_contextvars(trace_id=trace.trace_id, span_id=trace.span_id)
    try:
        yield trace
    finally:
        trace.end()
