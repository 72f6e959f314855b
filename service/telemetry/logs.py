"""Logging: one JSON object per line on stderr, and one line per question.

The text of questions, passages and answers is never logged at level info or above.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Final, Literal, TextIO

import orjson
import structlog

from service.answer.events import AnswerReady, BaseEvent, Failed, QueryIssued, RouteChosen
from service.core.domain import LoopName, RouteName
from service.core.errors import ConfigurationError

LEVELS: Final = ("debug", "info", "warning", "error")
SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)

log = structlog.get_logger("service.questions")


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog and the standard library's loggers to write JSON lines to `stream`
    (stderr).

    Libraries log from `warning`, the service from `level`. Raises ConfigurationError for a level
    other than debug, info, warning and error.
    """
    if level not in LEVELS:
        raise ConfigurationError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    threshold = getattr(logging, level.upper())
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*SHARED, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_dumps),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    logging.getLogger("service").setLevel(threshold)
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
    )


def _dumps(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=repr).decode()


class QuestionLog:
    """Collects the values of a question's log line from its events; `write` it at the end."""

    def __init__(self, answer_id: str) -> None:
        self._id = answer_id
        self._route: RouteName | Literal["none"] = "none"
        self._loop: LoopName = "none"
        self._outcome = "cancelled"
        self._queries = 0
        self._steps: int | None = None
        self._problem: str | None = None
        self._started = time.monotonic()

    def see(self, event: BaseEvent) -> None:
        """Take one event, in order."""
        match event:
            case RouteChosen():
                self._route, self._loop = event.route, event.loop
            case QueryIssued():
                self._queries += 1
            case AnswerReady():
                self._outcome = "answered" if event.body.answered else "unanswered"
                self._steps = event.body.usage.steps
            case Failed():
                self._outcome = "error"
                self._problem = event.problem.type

    def write(self) -> None:
        """Write one line: id, outcome, route, loop, steps, retrievals, ms, and the problem's
        type."""
        fields = {
            "id": self._id,
            "outcome": self._outcome,
            "route": self._route,
            "loop": self._loop,
            "steps": self._steps,
            "retrievals": self._queries,
            "ms": round((time.monotonic() - self._started) * 1000, 1),
        }
        if self._problem:
            fields["problem"] = self._problem
        log.info("question", **fields)
