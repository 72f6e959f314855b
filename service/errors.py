"""One exception tree; the HTTP edge turns each into an RFC 9457 problem.

RevelatorError
├── InvalidRequest        422 invalid-request        the caller's input is wrong
│   └── LoopUnavailable   422 loop-unavailable       a known loop that this deployment cannot run
├── NotFound              404 not-found              no such collection or document
├── Overloaded            503 overloaded             too many questions wait already
├── Draining              503 draining               the server is going down
├── EngineFailure         503 engine-unavailable     an engine is out, cut off or speaks garbage
│   ├── EngineRefusal     503 engine-unavailable     it refuses this call: another would too
│   ├── EngineLimited     503 engine-unavailable     it limits its callers (429): wait `retry_after`
│   ├── EngineUnreached   503 engine-unavailable     nobody listens there
│   ├── EngineInterrupted 503 engine-unavailable     lost in mid-output: start again elsewhere
│   └── EngineTimeout     503 engine-timeout         an engine did not answer in time
├── RetrievalFailure      503 retrieval-unavailable  no store can be searched
│   └── BackendUnavailable    as above               it may be back by itself: worth another try
├── LimitReached                                     a question may spend no more
│   ├── DeadlineExceeded  504 deadline               time is up and there is no text to answer with
│   └── BudgetExceeded    503 budget                 calls, tokens or retrievals are used up
├── ConfigurationError    500 configuration          settings that cannot work (raised at start)
└── StoreError            500 store                  a data directory or a store is unusable
    └── StoreLost         500 store                  a server holds a collection's part no more
"""

from __future__ import annotations

from typing import Literal


class RevelatorError(Exception):
    """Base of every expected failure. `detail` says what was wrong, where, and what to do."""

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
    slug, title = "engine-timeout", "The generation engine did not answer in time"


class RetrievalFailure(RevelatorError):
    slug, title, status = "retrieval-unavailable", "No store can be searched", 503
    retry_after = 5


class BackendUnavailable(RetrievalFailure):
    """No connection, no answer in time, 429, 502, 503 or 504. Other failures of a backend would
    be the same at a second try."""


class LimitReached(RevelatorError):
    """What a question has come to so far is answered from; see `Answer.stopped_by`."""

    stopped_by: Literal["deadline", "budget"]


class BudgetExceeded(LimitReached):
    slug, title, status = "budget", "The question's budget is used up", 503
    stopped_by = "budget"


class DeadlineExceeded(LimitReached):
    stopped_by = "deadline"
    slug, title, status = "deadline", "Time is up and there is nothing to answer from", 504


class ConfigurationError(RevelatorError):
    slug, title = "configuration", "The settings cannot work"


class StoreError(RevelatorError):
    slug, title = "store", "A store cannot be used"


class StoreLost(StoreError):
    """The index or the collection that a server should hold is not there. It can be made again."""
