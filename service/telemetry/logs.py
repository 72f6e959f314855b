"""Logging: one JSON object per line on stderr, and one line per question.

The text of questions, passages and answers is never logged at level info or above: the
messages of servers and exceptions, which may repeat it, are removed. At level debug, tracebacks
contain the messages.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import orjson
import structlog

from service.core.domain import Answer, Problem
from service.core.private import withhold

if TYPE_CHECKING:
    from service.answer.inquiry import Inquiry

log = structlog.get_logger("service.questions")


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog and the standard library's loggers to write JSON lines to `stream`
    (default: stderr).

    Libraries log from level `warning`, the service from `level`.
    """
    threshold = getattr(logging, level.upper())
    shared = _processors(messages=level == "debug")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(
                    serializer=lambda event, **_: orjson.dumps(event, default=repr).decode()
                ),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    logging.getLogger("service").setLevel(threshold)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
    )


def _processors(*, messages: bool) -> list[structlog.typing.Processor]:
    """Return the processors of the log lines of the service and of libraries.

    With `messages`, tracebacks include the messages of exceptions.
    """
    renderer = structlog.processors.ExceptionRenderer(format_traceback)
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if messages else renderer,
        _withhold,
    ]


def format_traceback(exc_info: structlog.typing.ExcInfo) -> str:
    """Return a traceback with the types of its exceptions but without their messages, which may
    contain any text."""
    return "".join(_traceback(exc_info[1], set())).rstrip("\n")


def _traceback(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _traceback(before, seen)
        yield "\nWhile this was handled:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}\n"
    for inner in getattr(error, "exceptions", ()):
        yield from _traceback(inner, seen)


def _withhold(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = withhold(value)
    return event


def log_question(inquiry: Inquiry) -> None:
    """Write the line of a question: id, outcome, route, loop, steps, retrievals, ms, and the
    problem's type."""
    fold, result = inquiry.fold, inquiry.fold.result
    log.info(
        "question",
        id=inquiry.id,
        outcome=fold.outcome,
        route=fold.route or "none",
        loop=fold.loop or "none",
        steps=result.usage.steps if isinstance(result, Answer) else None,
        retrievals=fold.usage().retrievals,
        ms=round(inquiry.budget.elapsed_s * 1000, 1),
        **({"problem": result.type} if isinstance(result, Problem) else {}),
    )
