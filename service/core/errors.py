"""The exception tree. The HTTP edge turns each exception into an RFC 9457 problem.

RevelatorError
├── InvalidRequest        422 invalid-request        the input is not valid
│   ├── BadDocument       422 invalid-request        not valid as a document
│   └── LoopUnavailable   422 loop-unavailable       a known loop that this deployment cannot run
├── NotFound              404 not-found              no such collection or document
│   └── UnknownCollection 404 not-found              no collection of this name
├── Overloaded            503 overloaded             too many questions are waiting
├── Draining              503 draining               the server is shutting down
├── EngineFailure         503 engine-unavailable     an engine failed or sent an invalid response
│   ├── EngineRefusal     503 engine-unavailable     it refuses this call, as another engine would
│   ├── EngineLimited     503 engine-unavailable     it limits its clients (429): wait `retry_after`
│   ├── EngineUnreached   503 engine-unavailable     the connection was not accepted
│   ├── EngineInterrupted 503 engine-unavailable     lost during output: restart elsewhere
│   └── EngineTimeout     503 engine-timeout         an engine did not respond in time
├── RetrievalFailure      503 retrieval-unavailable  no store can be searched
│   └── BackendUnavailable    as above               temporary: worth a retry
├── LimitReached                                     a question has reached one of its limits
│   ├── DeadlineExceeded  504 deadline               the time limit, before there was an answer
│   └── BudgetExceeded    503 budget                 the limit of calls, tokens or retrievals
├── ConfigurationError    500 configuration          settings that cannot work (raised at start)
└── StoreError            500 store                  a data directory or a store is unusable
    ├── StoreLost         500 store                  a server no longer holds a collection's data
    └── StoreBusy         503 store                  another writer has locked it: worth a retry
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

MOST_NAMES: Final = 10  # of collections in a message


class RevelatorError(Exception):
    """Base class of expected errors. `detail` says what was wrong, where, and what to do."""

    slug = "internal"
    title = "Internal error"
    status = 500
    retry_after: int | None = None

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class InvalidRequest(RevelatorError):
    slug, title, status = "invalid-request", "The request is not valid", 422


class LoopUnavailable(InvalidRequest):
    slug, title = "loop-unavailable", "This deployment cannot run the loop"


class NotFound(RevelatorError):
    slug, title, status = "not-found", "Not found", 404


class UnknownCollection(NotFound):
    """There is no collection `name`; `existing` are the names that there are. `brief` tells none of
    them."""

    def __init__(self, name: str, existing: Sequence[str]) -> None:
        self.brief = f"there is no collection {name[:80]!r}"
        known = ", ".join(existing[:MOST_NAMES]) or "none"
        more = f" and {len(existing) - MOST_NAMES:,} more" if len(existing) > MOST_NAMES else ""
        super().__init__(f"{self.brief}; existing collections: {known}{more}")
        self.name, self.existing = name, existing

    def among(self, visible: Callable[[str], bool]) -> NotFound:
        """Return the error for someone to whom only some collections are `visible`."""
        return NotFound(UnknownCollection(self.name, [*filter(visible, self.existing)]).detail)


class Overloaded(RevelatorError):
    slug, title, status = "overloaded", "Too many questions are waiting", 503
    retry_after = 1


class Draining(RevelatorError):
    slug, title, status = "draining", "The server is shutting down", 503
    retry_after = 5


class EngineFailure(RevelatorError):
    slug, title, status = "engine-unavailable", "The generation engine failed", 503
    retry_after = 5


class EngineRefusal(EngineFailure):
    pass


class EngineLimited(EngineFailure):
    pass


class EngineUnreached(EngineFailure):
    pass


class EngineInterrupted(EngineFailure):
    pass


class EngineTimeout(EngineFailure):
    slug, title = "engine-timeout", "The generation engine did not respond in time"


class RetrievalFailure(RevelatorError):
    slug, title, status = "retrieval-unavailable", "No store can be searched", 503
    retry_after = 5


class BackendUnavailable(RetrievalFailure):
    """No connection, no response in time, 429, 502, 503 or 504. Other failures of a backend would
    recur at a retry."""


class LimitReached(RevelatorError):
    """A limit was reached. The answer uses what was found so far; see `Answer.stopped_by`."""

    stopped_by: Literal["deadline", "budget"]


class BudgetExceeded(LimitReached):
    slug, title, status = "budget", "The question's budget is used up", 503
    stopped_by = "budget"


class DeadlineExceeded(LimitReached):
    stopped_by = "deadline"
    slug, title, status = "deadline", "The time limit was reached without an answer", 504


class ConfigurationError(RevelatorError):
    slug, title = "configuration", "The settings are not valid"


class StoreError(RevelatorError):
    slug, title = "store", "A store cannot be used"


class StoreLost(StoreError):
    """A server does not hold an expected index or collection. It can be rebuilt."""


class StoreBusy(StoreError):
    """Another process, or another gateway, has locked it for writing."""

    title, status = "A store is locked by another process", 503
    retry_after = 5
