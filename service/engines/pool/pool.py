"""The pool: many workers that act as one engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

from service.core.concurrency import closing
from service.core.errors import EngineFailure, EngineInterrupted, EngineRefusal
from service.core.metrics import Metrics
from service.core.settings import EngineSettings
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator
from service.engines.pool import workers
from service.engines.pool.upkeep import Upkeep
from service.engines.pool.workers import (
    WaitingCall,
    Worker,
    WorkerAdmission,
    outage,
)
from service.engines.signals import ScoreRequest, Scoring, Span
from service.engines.vllm import VllmGenerator

Result = TypeVar("Result")
QUESTIONS: Final = 1024  # the most recent; a forgotten one may return to the worker that failed it


class PoolGenerator(Generator):
    """An engine that distributes calls over the workers of `settings.urls`. `connect` creates the
    client of a worker.

    A call that fails before its first output is repeated at another worker, unless the worker
    refused it as invalid. One that fails later raises EngineInterrupted: the caller withdraws what
    it showed and calls again, and the pool sends that question to another worker. Calls with
    signals go to workers that run Revelator's plugin.
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        connect: Callable[[str], VllmGenerator],
        metrics: Metrics,
    ) -> None:
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._closed = False
        self._lost: dict[str, frozenset[str]] = {}  # the workers that failed each question
        self._workers: dict[str, Worker] = {}
        limits = workers.LIMITS
        self._tries = range(limits.retries, -1, -1)  # each with the retries that are left
        self._admission = WorkerAdmission(
            name, settings, self._workers, metrics.worker_in_flight, limits
        )
        self._upkeep = Upkeep(
            name, settings, self._workers, connect, metrics, self._admission.dispatch, limits
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What at least one worker supports. The context length is the shortest of all."""
        profiles = [worker.profile for worker in self._workers.values()]
        free = self._settings.constrained == "none"
        return Capabilities(
            choices=not free,
            json_schema=not free,
            logprobs=True,
            token_signals=any(profile.signals for profile in profiles),
            context_tokens=min(
                (p.context_tokens for p in profiles if p.context_tokens), default=None
            ),
        )

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        prompt = len(request.prompt or "") + sum(len(m.content) for m in request.messages)
        signals = request.signals is not None
        waiter = self._waiter(request, prompt, request.max_tokens, signals=signals)
        for retries in self._tries:
            async with (
                self._attempt(waiter, retries) as worker,
                closing(worker.client.stream(request)) as deltas,
            ):
                async for delta in deltas:
                    yield delta if waiter.begun else replace(delta, worker=worker.name)
                    waiter.begun = waiter.begun or bool(delta.text)
                return

    async def score(self, request: ScoreRequest) -> Scoring:
        length = len(request.text or "") + 4 * len(request.token_ids)
        waiter = self._waiter(request, length, 0, signals=True)
        return await self._again(waiter, lambda client: client.score(request))

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        waiter = WaitingCall("", turn=1, model=model or self._settings.model, signals=True)
        return await self._again(waiter, lambda client: client.token_spans(text, model))

    async def check(self) -> None:
        """Raise EngineFailure if no worker that serves the engine's model is up."""
        self._require_open()
        await self._upkeep.ready()
        self._require_open()
        if self._upkeep.problem and not self._workers:
            raise EngineFailure(f"engine {self._name!r}: {self._upkeep.problem}")
        waiter = WaitingCall("", model=self._settings.model)
        if not any(worker.serves(waiter) for worker in self._workers.values()):
            raise outage(self._name, waiter, self._workers.values())

    def workers(self) -> list[Worker]:
        """All known workers, by name."""
        return [worker for _, worker in sorted(self._workers.items())]

    async def aclose(self) -> None:
        """Stop the upkeep and close all connections; calls in progress fail."""
        self._closed = True
        await self._upkeep.aclose()
        for worker in self._workers.values():
            await worker.disconnect()

    @asynccontextmanager
    async def _attempt(self, waiter: WaitingCall, retries: int) -> AsyncIterator[Worker]:
        """Provide a worker, and record the result. A failure is passed over if `retries` are left,
        unless the worker refused the call. Raises EngineInterrupted if the call has begun."""
        self._require_open()
        self._upkeep.start()
        async with self._admission.place(waiter) as worker:
            self._require_open()  # it may have waited for its place
            try:
                yield worker
            except EngineRefusal:
                raise
            except EngineFailure as failure:
                self._metrics.worker_failure(worker.name)
                self._remember(waiter.question, worker.name)
                self._upkeep.call_failed(worker, failure)
                if waiter.begun:
                    raise EngineInterrupted(failure.detail) from None
                if not retries:
                    raise
                waiter.avoid |= {worker.name}
            else:
                worker.failures = 0

    def _remember(self, question: str, worker: str) -> None:
        """Remember which worker failed a question, for the most recent ones."""
        if question:
            self._lost[question] = self._lost.pop(question, frozenset()) | {worker}
            if len(self._lost) > QUESTIONS:
                del self._lost[next(iter(self._lost))]

    def _require_open(self) -> None:
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")

    async def _again(
        self, waiter: WaitingCall, call: Callable[[VllmGenerator], Awaitable[Result]]
    ) -> Result:
        """Make a call with a single response, at one worker after the other until one succeeds."""
        for retries in self._tries:
            async with self._attempt(waiter, retries) as worker:
                return await call(worker.client)
        raise AssertionError("the last attempt raises its failure")

    def _waiter(
        self,
        request: GenerationRequest | ScoreRequest,
        characters: int,
        tokens: int,
        *,
        signals: bool = False,
    ) -> WaitingCall:
        """Return the queue entry of a call. `characters` is the length of the prompt, counted as
        four to a token; `tokens` is the longest output.
        """
        model = request.model or self._settings.model
        avoid = self._lost.get(request.question, frozenset())
        size = characters // 4 + tokens
        return WaitingCall(request.question, request.turn, size, model, signals, avoid)
