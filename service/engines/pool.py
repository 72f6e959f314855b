"""The pool: many workers that act as one engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

import structlog
from yarl import URL

from service.core.concurrency import closing
from service.core.errors import EngineFailure, EngineInterrupted, EngineRefusal
from service.core.metrics import Metrics, Phase
from service.core.settings import EngineSettings
from service.engines import workers
from service.engines.base import Capabilities, Delta, GenerationRequest, Generator
from service.engines.signals import ScoreRequest, Scoring, Span
from service.engines.vllm import VllmGenerator
from service.engines.workers import (
    WaitingCall,
    Worker,
    WorkerAdmission,
    addresses,
    outage,
)

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
QUESTIONS: Final = 1024  # the most recent; a forgotten one may return to the worker that failed it


class PoolGenerator(Generator):
    """An engine that distributes calls over the workers of `settings.urls`. `connect` creates the
    client of a worker.

    A call that fails before its first output is repeated at another worker, unless the worker
    refused it as invalid. One that fails later raises EngineInterrupted: the caller withdraws what
    it showed and calls again, and the pool sends that question to another worker. Calls with
    signals go to workers that run Revelator's plugin. From the first call or `check` on, one task
    resolves the workers' names and probes them.
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
        self._limits = limits = workers.LIMITS
        self._tries = range(limits.retries, -1, -1)  # each with the retries that are left
        self._admission = WorkerAdmission(
            name, settings, self._workers, metrics.worker_in_flight, limits
        )
        self._connect = connect
        self._problem: str | None = None  # why the workers are not known, or not visited
        self._upkeep: asyncio.Task[None] | None = None
        self._first_round = asyncio.Event()
        self._resolve_at = 0.0

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
            pooled=True,
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
        self._begin_upkeep()
        await self._first_round.wait()
        self._require_open()
        if self._problem and not self._workers:
            raise EngineFailure(f"engine {self._name!r}: {self._problem}")
        waiter = WaitingCall("", model=self._settings.model)
        if not any(worker.serves(waiter) for worker in self._workers.values()):
            raise outage(self._name, waiter, self._workers.values())

    def served_models(self) -> Sequence[str]:
        up = [worker for worker in self._workers.values() if worker.phase == "up"]
        return sorted({model for worker in up for model in worker.profile.models})

    def workers(self) -> list[Worker]:
        """All known workers, by name."""
        return [worker for _, worker in sorted(self._workers.items())]

    async def aclose(self) -> None:
        """Stop the upkeep and close all connections; calls in progress fail."""
        self._closed = True
        task, self._upkeep = self._upkeep, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._first_round.set()  # whoever waits in `check` must not wait for ever
        for worker in self._workers.values():
            await worker.disconnect()

    @asynccontextmanager
    async def _attempt(self, waiter: WaitingCall, retries: int) -> AsyncIterator[Worker]:
        """Provide a worker, and record the result. A failure is passed over if `retries` are left,
        unless the worker refused the call. Raises EngineInterrupted if the call has begun."""
        self._require_open()
        self._begin_upkeep()
        async with self._admission.place(waiter) as worker:
            self._require_open()  # it may have waited for its place
            try:
                yield worker
            except EngineRefusal:
                raise
            except EngineFailure as failure:
                self._metrics.count("worker_failures_total", worker.name)
                self._remember(waiter.question, worker.name)
                self.call_failed(worker, failure)
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

    # ---- upkeep

    def _begin_upkeep(self) -> None:
        if self._upkeep is None:
            self._upkeep = asyncio.create_task(self._run(), name=f"upkeep of {self._name}")

    async def round(self) -> None:
        """Resolve names if it is time, then probe all workers concurrently."""
        if time.monotonic() >= self._resolve_at:
            await self._look_up()
        async with asyncio.TaskGroup() as group:
            for worker in list(self._workers.values()):
                group.create_task(self._visit_alone(worker))

    def call_failed(self, worker: Worker, error: EngineFailure) -> None:
        """Record a failed call. Failures caused by a worker's ejection do not count."""
        if worker.phase == "up":
            self._set(worker, worker.phase_after(error, self._limits))

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:
                self._problem = f"the upkeep of its workers failed ({error!r}); see the log"
                log.exception("upkeep failed", engine=self._name)
            self._first_round.set()
            await asyncio.sleep(self._limits.probe_s)

    async def _look_up(self) -> None:
        resolve = self._settings.resolve
        self._resolve_at = time.monotonic() + (self._limits.resolve_s if resolve else math.inf)
        try:
            found = await addresses([URL(url) for url in self._settings.urls], resolve)
            self._problem = None
        except EngineFailure as error:
            self._problem = error.detail  # the known workers stay
            log.warning("workers not found", engine=self._name, reason=error.detail)
            return
        listed = {worker.name: worker for worker in (Worker(url, self._connect) for url in found)}
        for name, worker in listed.items():
            known = self._workers.setdefault(name, worker)
            if known.phase == "draining":
                self._set(known, "joining")
        for name, worker in self._workers.items():
            if name not in listed:
                self._set(worker, "draining")

    async def _visit_alone(self, worker: Worker) -> None:
        """Visit one worker. An unexpected error must not end the visits of the others."""
        try:
            await self._visit(worker)
        except Exception as error:
            worker.problem = f"its upkeep failed ({error!r}); see the log"
            log.exception("upkeep failed", engine=self._name, worker=worker.name)

    async def _visit(self, worker: Worker) -> None:
        phase = worker.phase
        if phase == "draining":
            if worker.calls == 0:
                self._workers.pop(worker.name, None)
                self._metrics.worker_gone(worker.name)
                await worker.disconnect()
            return
        try:
            async with asyncio.timeout(self._limits.probe_s):
                await worker.client.health()
                if phase != "up":
                    worker.profile = await worker.client.profile()
        except TimeoutError:
            silent = f"no response to a probe within {self._limits.probe_s:g} s"
            await self._probe_failed(worker, EngineFailure(silent))
        except EngineFailure as error:
            await self._probe_failed(worker, error)
        except Exception:
            log.exception("probe failed", engine=self._name, worker=worker.name)
            await self._probe_failed(worker, EngineFailure("the probe failed; see the log"))
        else:
            if worker.phase == phase:  # calls may have ejected it meanwhile
                worker.failures = self._limits.eject_after - 1 if phase == "ejected" else 0
                self._set(worker, "up")

    async def _probe_failed(self, worker: Worker, error: EngineFailure) -> None:
        """Record a failed probe. If it ejects the worker, the calls still running there fail now
        instead of at their time limit.
        """
        self._set(worker, worker.phase_after(error, self._limits))
        if worker.phase == "ejected":
            await worker.disconnect()

    def _set(self, worker: Worker, phase: Phase) -> None:
        before, worker.phase = worker.phase, phase
        if before != phase:
            log.info(
                "worker state changed", engine=self._name, worker=worker.name, phase=phase,
                reason=worker.problem if phase == "ejected" else None,
            )  # fmt: skip
            self._metrics.worker_phase(worker.name, phase)
            if phase == "up":
                self._admission.dispatch()
