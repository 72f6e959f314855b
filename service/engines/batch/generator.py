"""The asynchronous side of an engine in this process. Importing this module is cheap."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from service.core.errors import EngineFailure, EngineTimeout
from service.core.settings import EngineSettings
from service.engines.base import Capabilities, Delta, GenerationRequest
from service.engines.batch.worker import BatchEngine, Call, Item, Job, ScoreJob, SignalJob, Worker
from service.engines.reasoning import Reasoning
from service.engines.signals import (
    AttentionRow,
    ContextRows,
    ScoreRequest,
    Scoring,
    SignalCall,
    SignalDelta,
    SignalRequest,
    Span,
    check_rows,
)
from service.engines.training_notes import read_training_notes

# a question may send more than ten judgements at once, and must not be refused because of itself
WAITING_PER_SLOT = 16


class BatchedGenerator(ABC):
    """One model, batched continuously in one thread.

    `max_concurrency` calls run at once and 16 times as many may wait; further ones raise
    Overloaded. `request.model` is ignored, because there is one model. `threads` limits the threads
    of a forward pass; the maximum is the number of physical cores.

    If a prompt does not fit the model's context beside the requested output, its oldest tokens are
    dropped, except for the first (the start token). This is the last resort: callers shorten
    prompts at better places.
    """

    def __init__(self, name: str, settings: EngineSettings, *, threads: int = 4) -> None:
        self._name = name
        self._settings = settings
        self._threads = threads
        self._notes = read_training_notes(Path(self._model))
        self._reasoning = Reasoning(settings.reasoning, settings.reasoning_tokens)
        self._worker: Worker | None = None
        self._closed = False

    @property
    @abstractmethod
    def _model(self) -> str:
        """The model's folder, which may have training notes, or the name of a model elsewhere."""

    @abstractmethod
    def _load(self) -> BatchEngine:
        """Open the model; runs in the engine's thread. Raises EngineFailure."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            choices=self._constrained,
            json_schema=self._constrained,
            logprobs=True,
            token_signals=not (self._worker and self._worker.no_signals),
            context_tokens=self._worker.context_tokens if self._worker else None,
            passages=self._notes.passages,
            templates=self._notes.templates,
            autorag=self._notes.autorag,
            one_at_a_time=self._notes.one_at_a_time,
        )

    @property
    def _constrained(self) -> bool:
        return self._settings.constrained != "none"

    @property
    def forward_passes(self) -> int:
        """The number of forward passes of the model so far, over all calls."""
        return self._worker.forward_passes if self._worker else 0

    @property
    def running(self) -> int:
        """The number of calls in the batch. A closed call counts until the current step has
        ended.
        """
        return self._worker.running if self._worker else 0

    @property
    def waiting(self) -> int:
        return self._worker.waiting if self._worker else 0

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return self._reasoning.stream(request, self._stream)

    async def _stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        worker = await self._started()
        job = Job(request, asyncio.get_running_loop())
        worker.submit(job)
        try:
            while True:
                item = await self._next(job)
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Delta):
                    yield item
                    if item.finish is not None:
                        return
        finally:
            job.cancelled = True

    @asynccontextmanager
    async def signals(self, request: SignalRequest) -> AsyncIterator[SignalCall]:
        worker = await self._with_signals()
        job = SignalJob(request, asyncio.get_running_loop())
        worker.submit(job)
        try:
            yield LocalSignalCall(request, job, self._next)
        finally:
            job.cancelled = True

    async def score(self, request: ScoreRequest) -> Scoring:
        worker = await self._with_signals()
        job = ScoreJob(request, asyncio.get_running_loop())
        worker.submit(job)
        try:
            item = await self._next(job)
        finally:
            job.cancelled = True
        if isinstance(item, Scoring):
            return item
        raise (
            item
            if isinstance(item, BaseException)
            else EngineFailure("the engine returned no scoring")
        )

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        return (await self._started()).spans(text)

    async def check(self) -> None:
        """Load the model if it is not loaded yet. Raises EngineFailure."""
        await self._started()

    async def aclose(self) -> None:
        """Fail the running calls and join the thread. A second call does nothing."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    async def _with_signals(self) -> Worker:
        worker = await self._started()
        if worker.no_signals:
            raise EngineFailure(
                f"engine {self._name!r} does not provide token signals: {worker.no_signals}"
            )
        return worker

    async def _next(self, job: Call) -> Item:
        """Return the next item of a call. While the engine computes other calls, this one waits for
        its turn as long as its caller allows; only an engine without progress counts as silent.
        """
        if not job.items.empty():
            return job.items.get_nowait()
        while True:
            passes = self.forward_passes
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    return await job.items.get()
            except TimeoutError:
                if self.forward_passes == passes:
                    raise self._silence() from None

    def _silence(self) -> EngineTimeout:
        return EngineTimeout(
            f"engine {self._name!r} computed nothing for {self._settings.timeout_s:g} s, with "
            f"{self.running} calls running and {self.waiting} waiting; check the load of this "
            f"machine, or raise engines.{self._name}.timeout_s"
        )

    async def _started(self) -> Worker:
        """Return the worker with its model loaded. Loading does not count towards a call's time
        limit.
        """
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")
        if self._worker is None:
            running = self._settings.max_concurrency
            self._worker = Worker(self._name, self._load, running, running * WAITING_PER_SLOT)
        worker = self._worker
        try:
            if not worker.loaded.done():
                await asyncio.shield(asyncio.wrap_future(worker.loaded))
            worker.loaded.result()
        except EngineFailure:
            if self._worker is worker:
                self._worker = None  # the next call tries again
            raise
        return worker


class LocalSignalCall:
    """A generation in progress. Its rows are read from the job."""

    def __init__(
        self,
        request: SignalRequest,
        job: SignalJob,
        receive: Callable[[SignalJob], Awaitable[Item]],
    ) -> None:
        self._request = request
        self._job = job
        self._receive = receive
        self._spans: list[Span] = []

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        while not self._job.cancelled:
            item = await self._receive(self._job)
            if isinstance(item, BaseException):
                raise item
            if not isinstance(item, SignalDelta):
                raise EngineFailure(f"a call with signals received {type(item).__name__}")
            self._spans += [token.span for token in item.tokens]
            yield item
            if item.finish is not None:
                return

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        self._job.cancelled = True
        check_rows(self._request, tokens, len(self._spans))
        start, first = len(self._request.prompt), len(self._job.spans)
        draft = [(start + begin, start + end) for begin, end in self._spans]
        rows = [
            AttentionRow(first + token, tuple(self._job.rows[token].tolist())) for token in tokens
        ]
        return ContextRows((*self._job.spans, *draft), tuple(rows))
