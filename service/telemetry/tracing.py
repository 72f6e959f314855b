"""OpenTelemetry traces of questions, off unless `tracing.url` is set.

A question is a span, below the caller's if the request has a `traceparent`; its steps are spans
below it, and below these each search and each engine call. No span holds a text of a question, a
passage or an answer. `service.telemetry.spans` makes them; without tracing nothing of
OpenTelemetry is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from service.core.errors import ConfigurationError
from service.core.extras import lacking
from service.core.settings import TracingSettings

if TYPE_CHECKING:
    from service.telemetry.spans import QuestionTrace, Tracing


def open_tracing(settings: TracingSettings) -> Tracing | None:
    """Return what traces questions, or None if it is off. Raises ConfigurationError without the
    extra `otel`."""
    if settings.url is None:
        return None
    try:
        from service.telemetry.spans import exporting  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(lacking("tracing.url", error, "otel")) from None
    return exporting(settings)


@contextmanager
def traced(
    tracing: Tracing | None, answer_id: str, caller: Mapping[str, str]
) -> Iterator[QuestionTrace | None]:
    """Trace one question. `caller`: the header fields with its trace context. The log lines of this
    task have the ids of the trace from then on."""
    if tracing is None:
        yield None
        return
    trace = tracing.question(answer_id, caller)
    structlog.contextvars.bind_contextvars(trace_id=trace.trace_id, span_id=trace.span_id)
    try:
        yield trace
    finally:
        trace.end()
