"""The Prometheus metrics of one application, in a registry of its own.

The names are a contract, because dashboards and alerts use them. `route` and `loop` are `none`
until they are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from service.core.domain import LoopName, QuestionOutcome, RoleName, RouteName, Usage

Phase = Literal["joining", "up", "ejected", "draining"]  # of a pool's worker
BreakerState = Literal["closed", "half-open", "open"]
RejectReason = Literal["busy", "key_limit", "draining"]
# The counters that nothing else is recorded with.
Counted = Literal[
    "questions_total", "wasted_tokens_total", "resent_calls_total", "unread_judgements_total",
    "saved_tokens_total", "retrieval_retries_total", "cache_requests_total",
    "worker_failures_total",
]  # fmt: skip

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
QUESTION_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
RETRIEVAL_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
GENERATION_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RETRIEVALS: Final = (0, 1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 64)
STEPS: Final = (0, 1, 2, 3, 4, 5, 8, 12, 20)
LLM_CALLS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
OF_QUESTION: Final = ("route", "loop")


class Row(NamedTuple):
    """What a metric counts, and by which labels. A histogram has `buckets`."""

    kind: type[Counter | Gauge | Histogram]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: Final = {
    "questions_total": Row(
        Counter, "Number of questions, by how they ended.", (*OF_QUESTION, "outcome")
    ),
    "question_seconds": Row(
        Histogram, "Duration of a question, from its admission.", OF_QUESTION, QUESTION_SECONDS
    ),
    "retrievals_per_question": Row(
        Histogram, "Number of searches per question.", OF_QUESTION, RETRIEVALS
    ),
    "steps_per_question": Row(
        Histogram, "Number of retrieve-and-generate cycles per question.", OF_QUESTION, STEPS
    ),
    "llm_calls_per_question": Row(
        Histogram, "Number of engine calls per question, including routing and retries.",
        OF_QUESTION, LLM_CALLS,
    ),
    "generation_seconds": Row(
        Histogram, "Duration of one engine call.", ("role", "worker"), GENERATION_SECONDS
    ),
    "time_to_first_token_seconds": Row(
        Histogram, "Time from an engine call to its first output.", ("worker",), GENERATION_SECONDS
    ),
    "tokens_total": Row(Counter, "Tokens by role.", ("role", "kind")),
    "wasted_tokens_total": Row(
        Counter, "Number of tokens of calls that were cancelled before their end."
    ),
    "resent_calls_total": Row(
        Counter, "Number of engine calls repeated because their connection closed before a reply."
    ),
    "unread_judgements_total": Row(
        Counter, "Number of replies of the judge that could not be parsed."
    ),
    "saved_tokens_total": Row(
        Counter, "Number of tokens saved by ending calls before their limit."
    ),
    "retrieval_seconds": Row(
        Histogram, "Duration of one search in one backend.", ("backend",), RETRIEVAL_SECONDS
    ),
    "retrieval_failures_total": Row(Counter, "Number of failed searches.", ("backend",)),
    "retrieval_retries_total": Row(Counter, "Number of retried searches.", ("backend",)),
    "breaker_state": Row(
        Gauge, "State of a backend's circuit breaker.", ("backend", "revelator_breaker_state")
    ),
    "breaker_opened_total": Row(
        Counter, "Number of times that a backend's circuit breaker opened.", ("backend",)
    ),
    "cache_requests_total": Row(Counter, "Number of cache look-ups.", ("cache", "outcome")),
    "questions_in_flight": Row(Gauge, "Number of questions in progress."),
    "questions_waiting": Row(Gauge, "Number of waiting questions."),
    "rejected_total": Row(Counter, "Refused questions.", ("reason",)),
    "degraded_total": Row(
        Counter, "Number of questions answered without a retriever that was unavailable.",
        ("backend",),
    ),
    "worker_up": Row(Gauge, "Whether a worker is available (1) or not (0).", ("worker",)),
    "worker_in_flight": Row(Gauge, "Number of calls in progress at a worker.", ("worker",)),
    "worker_state": Row(Gauge, "State of a worker.", ("worker", "revelator_worker_state")),
    "worker_failures_total": Row(Counter, "Number of calls lost by a pool's worker.", ("worker",)),
}  # fmt: skip
# Samples that are exported as 0 before their first count, instead of being omitted.
FROM_THE_START: Final = (
    *(("tokens_total", labels) for labels in product(get_args(RoleName), ("prompt", "completion"))),
    *(("rejected_total", (reason,)) for reason in get_args(RejectReason)),
    *(("degraded_total", (name,)) for name in ("bm25", "dense", "index-incomplete")),
)


class Metrics:
    """All metrics. `render` returns them in Prometheus' text format."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        for name, row in METRICS.items():
            more: dict[str, Any] = {"buckets": row.buckets} if row.buckets else {}
            self._metrics[name] = row.kind(
                f"revelator_{name}", row.text, row.labels, registry=self.registry, **more
            )
        for name, labels in FROM_THE_START:
            self._of(name, *labels)

    def _of(self, *key: str) -> Any:
        """Return a metric by its name and the values of its labels, which are looked up once."""
        child = self._children.get(key)
        if child is None:
            metric = self._metrics[key[0]]
            child = self._children[key] = metric.labels(*key[1:]) if key[1:] else metric
        return child

    def began(self) -> None:
        """Count a question that was admitted as in progress, until it has `ended`."""
        self._of("questions_in_flight").inc()

    def ended(
        self,
        route: RouteName | Literal["none"],
        loop: LoopName,
        outcome: QuestionOutcome,
        seconds: float,
        usage: Usage,
        missing: Sequence[str],
    ) -> None:
        """Record how a question ended, what it used, and which retrievers were unavailable."""
        self._of("questions_in_flight").dec()
        self._of("questions_total", route, loop, outcome).inc()
        self._of("question_seconds", route, loop).observe(seconds)
        self._of("retrievals_per_question", route, loop).observe(usage.retrievals)
        self._of("steps_per_question", route, loop).observe(usage.steps)
        self._of("llm_calls_per_question", route, loop).observe(usage.llm_calls)
        for name in missing:
            self._of("degraded_total", name).inc()

    def rejected(self, reason: RejectReason) -> None:
        """Count a question that was rejected before admission."""
        self._of("rejected_total", reason).inc()
        self._of("questions_total", "none", "none", "rejected").inc()

    def count(self, name: Counted, *labels: str, by: int = 1) -> None:
        """Count what the row of this name says."""
        self._of(name, *labels).inc(by)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a question as waiting for admission."""
        self._of("questions_waiting").inc()
        try:
            yield
        finally:
            self._of("questions_waiting").dec()

    def generation(
        self,
        role: RoleName,
        worker: str,
        seconds: float,
        first_token: float,
        prompt_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Record one engine call: its duration and the time to its first output in seconds, and its
        tokens."""
        self._of("generation_seconds", role, worker).observe(seconds)
        self._of("time_to_first_token_seconds", worker).observe(first_token)
        self._of("tokens_total", role, "prompt").inc(prompt_tokens)
        self._of("tokens_total", role, "completion").inc(completion_tokens)

    def search(self, backend: str, seconds: float, failed: bool) -> None:
        """Record the duration in seconds and the outcome of one search in one backend."""
        self._of("retrieval_seconds", backend).observe(seconds)
        if failed:
            self._of("retrieval_failures_total", backend).inc()

    def breaker(self, backend: str, state: BreakerState) -> None:
        """Set the state of a backend's circuit breaker."""
        for possible in get_args(BreakerState):
            self._of("breaker_state", backend, possible).set(possible == state)
        opened = self._of("breaker_opened_total", backend)
        if state == "open":
            opened.inc()

    def worker_up(self, worker: str, up: bool) -> None:
        """Set whether a worker could answer at its last check."""
        self._of("worker_up", worker).set(up)

    def worker_phase(self, worker: str, phase: Phase) -> None:
        """Set the state of a pool's worker."""
        self.worker_up(worker, phase == "up")
        for possible in get_args(Phase):
            self._of("worker_state", worker, possible).set(possible == phase)

    def worker_gone(self, worker: str) -> None:
        """Stop exporting the gauges of a worker that left its pool. Its counters remain."""
        self._children = {
            key: metric for key, metric in self._children.items() if worker not in key
        }
        for name in ("worker_up", "worker_state", "worker_in_flight"):
            self._metrics[name].remove_by_labels({"worker": worker})

    def worker_in_flight(self, worker: str, change: int) -> None:
        """Count calls at a worker that started (+1) or ended (-1)."""
        self._of("worker_in_flight", worker).inc(change)

    def render(self) -> bytes:
        """Return the metrics in text format, to be sent as `CONTENT_TYPE`."""
        return generate_latest(self.registry)
