"""The Prometheus metrics of one application, in a registry of its own.

The names are a contract, because dashboards and alerts use them. `route` and `loop` are `none`
until they are known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from service.answer.events import AnswerReady, BaseEvent, Failed, PassagesFound, RouteChosen, Token
from service.answer.fold import Fold
from service.core.domain import LoopName, RoleName, RouteName, Usage
from service.engines.base import TokenUsage
from service.engines.pool.workers import Phase, PoolObserver
from service.retrieval.search.guard import BreakerState

Outcome = Literal["answered", "unanswered", "error", "cancelled", "rejected"]
RejectReason = Literal["busy", "key_limit", "draining"]

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
QUESTION_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
RETRIEVAL_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
GENERATION_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RETRIEVALS: Final = (0, 1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 64)
STEPS: Final = (0, 1, 2, 3, 4, 5, 8, 12, 20)
LLM_CALLS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
OF_QUESTION: Final = ("route", "loop")


class _Call(NamedTuple):
    """The metrics of the engine calls of one role at one worker."""

    seconds: Histogram
    first_token: Histogram
    prompt: Counter
    completion: Counter


class Metrics(PoolObserver):
    """All metrics. `render` returns them in Prometheus' text format.

    It is the `Observer` to which questions report their engine calls.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls: dict[tuple[str, str], _Call] = {}
        self._flights: dict[str, Gauge] = {}
        self._question_metrics()
        self._call_metrics()
        self._backend_metrics()
        self._load_metrics()
        self._show_from_the_start()

    def _question_metrics(self) -> None:
        self._questions = self._counter(
            "revelator_questions_total",
            "Number of questions, by how they ended.",
            *OF_QUESTION,
            "outcome",
        )
        self._question_seconds = self._histogram(
            "revelator_question_seconds",
            "Duration of a question, from its admission.",
            QUESTION_SECONDS,
            *OF_QUESTION,
        )
        self._retrievals = self._histogram(
            "revelator_retrievals_per_question",
            "Number of searches per question.",
            RETRIEVALS,
            *OF_QUESTION,
        )
        self._steps = self._histogram(
            "revelator_steps_per_question",
            "Number of retrieve-and-generate cycles per question.",
            STEPS,
            *OF_QUESTION,
        )
        self._llm_calls = self._histogram(
            "revelator_llm_calls_per_question",
            "Number of engine calls per question, including routing and retries.",
            LLM_CALLS,
            *OF_QUESTION,
        )

    def _call_metrics(self) -> None:
        self._generation_seconds = self._histogram(
            "revelator_generation_seconds",
            "Duration of one engine call.",
            GENERATION_SECONDS,
            "role",
            "worker",
        )
        self._first_token_seconds = self._histogram(
            "revelator_time_to_first_token_seconds",
            "Time from an engine call to its first output.",
            GENERATION_SECONDS,
            "worker",
        )
        self._tokens = self._counter("revelator_tokens_total", "Tokens by role.", "role", "kind")
        self._wasted = self._counter(
            "revelator_wasted_tokens_total",
            "Number of tokens of calls that were cancelled before their end.",
        )
        self._resent = self._counter(
            "revelator_resent_calls_total",
            "Number of engine calls repeated because their connection closed before a reply.",
        )
        self._unread = self._counter(
            "revelator_unread_judgements_total",
            "Number of replies of the judge that could not be parsed.",
        )
        self._saved = self._counter(
            "revelator_saved_tokens_total",
            "Number of tokens saved by ending calls before their limit.",
        )

    def _backend_metrics(self) -> None:
        self._retrieval_seconds = self._histogram(
            "revelator_retrieval_seconds",
            "Duration of one search in one backend.",
            RETRIEVAL_SECONDS,
            "backend",
        )
        self._retrieval_failures = self._counter(
            "revelator_retrieval_failures_total", "Number of failed searches.", "backend"
        )
        self._retries = self._counter(
            "revelator_retrieval_retries_total", "Number of retried searches.", "backend"
        )
        self._breaker_state = self._gauge(
            "revelator_breaker_state",
            "State of a backend's circuit breaker.",
            "backend",
            "revelator_breaker_state",
        )
        self._breaker_opened = self._counter(
            "revelator_breaker_opened_total",
            "Number of times that a backend's circuit breaker opened.",
            "backend",
        )
        self._cache_requests = self._counter(
            "revelator_cache_requests_total", "Number of cache look-ups.", "cache", "outcome"
        )

    def _load_metrics(self) -> None:
        self._in_flight = self._gauge(
            "revelator_questions_in_flight", "Number of questions in progress."
        )
        self._waiting = self._gauge("revelator_questions_waiting", "Number of waiting questions.")
        self._rejected = self._counter("revelator_rejected_total", "Refused questions.", "reason")
        self._degraded = self._counter(
            "revelator_degraded_total",
            "Number of questions answered without a retriever that was unavailable.",
            "backend",
        )
        self._worker_up = self._gauge(
            "revelator_worker_up", "Whether a worker is available (1) or not (0).", "worker"
        )
        self._worker_in_flight = self._gauge(
            "revelator_worker_in_flight", "Number of calls in progress at a worker.", "worker"
        )
        self._worker_state = self._gauge(
            "revelator_worker_state", "State of a worker.", "worker", "revelator_worker_state"
        )
        self._worker_failures = self._counter(
            "revelator_worker_failures_total", "Number of calls lost by a pool's worker.", "worker"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _show_from_the_start(self) -> None:
        """Export samples with known labels as 0 before their first count, instead of omitting
        them."""
        for role in ("revelator", "reader", "judge"):
            for kind in ("prompt", "completion"):
                self._tokens.labels(role, kind)
        for reason in ("busy", "key_limit", "draining"):
            self._rejected.labels(reason)
        for name in ("bm25", "dense", "index-incomplete"):
            self._degraded.labels(name)

    @contextmanager
    def question(self) -> Iterator[Observation]:
        """Observe one question by passing it every event; leaving the context ends the question.

        A question that ends without `answer` or `error` counts as cancelled.
        """
        observation = Observation()
        self._in_flight.inc()
        try:
            yield observation
        finally:
            self._in_flight.dec()
            self._ended(observation)

    def _ended(self, seen: Observation) -> None:
        route, loop, usage = seen.route, seen.loop, seen.usage()
        self._questions.labels(route, loop, seen.outcome).inc()
        self._question_seconds.labels(route, loop).observe(seen.seconds)
        self._retrievals.labels(route, loop).observe(usage.retrievals)
        self._steps.labels(route, loop).observe(usage.steps)
        self._llm_calls.labels(route, loop).observe(usage.llm_calls)
        for name in seen.missing:
            self._degraded.labels(name).inc()

    def rejected(self, reason: RejectReason) -> None:
        """Count a question that was rejected before admission."""
        self._rejected.labels(reason).inc()
        self._questions.labels("none", "none", "rejected").inc()

    def left_waiting(self) -> None:
        """Count a question whose client disconnected while waiting."""
        self._questions.labels("none", "none", "cancelled").inc()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a question as waiting for admission."""
        self._waiting.inc()
        try:
            yield
        finally:
            self._waiting.dec()

    def generation(
        self, role: RoleName, worker: str, seconds: float, first_token: float, usage: TokenUsage
    ) -> None:
        """Record one engine call: its duration and the time to its first output in seconds, and its
        tokens."""
        child = self._calls.get((role, worker)) or self._add_call(role, worker)
        child.seconds.observe(seconds)
        child.first_token.observe(first_token)
        child.prompt.inc(usage.prompt_tokens)
        child.completion.inc(usage.completion_tokens)

    def _add_call(self, role: RoleName, worker: str) -> _Call:
        """Resolve the labels of a call once, because a question makes a dozen calls or more."""
        call = self._calls[role, worker] = _Call(
            self._generation_seconds.labels(role, worker),
            self._first_token_seconds.labels(worker),
            self._tokens.labels(role, "prompt"),
            self._tokens.labels(role, "completion"),
        )
        return call

    def wasted(self, tokens: int) -> None:
        """Count the tokens generated for a call that was cancelled."""
        self._wasted.inc(tokens)

    def call_resent(self) -> None:
        """Count an engine call that was sent again."""
        self._resent.inc()

    def saved(self, tokens: int) -> None:
        """Count the tokens saved by ending a call intentionally."""
        self._saved.inc(tokens)

    def unread_judgements(self, count: int) -> None:
        """Count replies of the judge, on relevance or on ending, that could not be parsed."""
        self._unread.inc(count)

    def search(self, backend: str, seconds: float, failed: bool) -> None:
        """Record the duration in seconds and the outcome of one search in one backend."""
        self._retrieval_seconds.labels(backend).observe(seconds)
        if failed:
            self._retrieval_failures.labels(backend).inc()

    def retried(self, backend: str) -> None:
        """Count a retry of a search in a backend."""
        self._retries.labels(backend).inc()

    def breaker(self, backend: str, state: BreakerState) -> None:
        """Set the state of a backend's circuit breaker."""
        for each in get_args(BreakerState):
            self._breaker_state.labels(backend, each).set(each == state)
        opened = self._breaker_opened.labels(backend)
        if state == "open":
            opened.inc()

    def cache(self, hit: bool) -> None:
        """Count a look-up in the cache of query embeddings."""
        self._cache_requests.labels("query_embeddings", "hit" if hit else "miss").inc()

    def worker_up(self, worker: str, up: bool) -> None:
        """Set whether a worker could answer at its last check."""
        self._worker_up.labels(worker).set(up)

    def worker_phase(self, worker: str, phase: Phase) -> None:
        """Set the state of a pool's worker."""
        self.worker_up(worker, phase == "up")
        for each in get_args(Phase):
            self._worker_state.labels(worker, each).set(each == phase)

    def worker_gone(self, worker: str) -> None:
        """Stop exporting the gauges of a worker that left its pool. Its counters remain."""
        self._flights.pop(worker, None)
        for gauge in (self._worker_up, self._worker_state, self._worker_in_flight):
            gauge.remove_by_labels({"worker": worker})

    def worker_failure(self, worker: str) -> None:
        """Count a call that a pool's worker lost."""
        self._worker_failures.labels(worker).inc()

    def worker_in_flight(self, worker: str, change: int) -> None:
        """Count calls at a worker that started (+1) or ended (-1)."""
        if worker not in self._flights:
            self._flights[worker] = self._worker_in_flight.labels(worker)
        self._flights[worker].inc(change)

    def render(self) -> bytes:
        """Return the metrics in text format, to be sent as `CONTENT_TYPE`."""
        return generate_latest(self.registry)


class Observation:
    """The state of one question according to its events."""

    def __init__(self) -> None:
        self.route: RouteName | Literal["none"] = "none"
        self.loop: LoopName = "none"
        self.outcome: Outcome = "cancelled"
        self.missing: list[str] = []
        self._events: list[BaseEvent] = []
        self._usage: Usage | None = None
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the question began."""
        return time.monotonic() - self._started

    def see(self, event: BaseEvent) -> None:
        """Process one event, in order."""
        if isinstance(event, Token):
            return
        self._events.append(event)
        match event:
            case RouteChosen():
                self.route, self.loop = event.route, event.loop
            case PassagesFound(missing=names):
                self.missing += [name for name in names if name not in self.missing]
            case AnswerReady():
                self.outcome = "answered" if event.body.answered else "unanswered"
                self._usage = event.body.usage
            case Failed():
                self.outcome = "error"

    def usage(self) -> Usage:
        """Calls, tokens, retrievals and cycles up to the latest event."""
        if self._usage is not None:
            return self._usage
        fold = Fold()
        for event in self._events:
            fold.add(event)
        return fold.usage()
