"""The pool: many workers that act as one engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from service.core.concurrency import closing
from service.core.errors import EngineFailure, EngineInterrupted, EngineRefusal
from service.core.settings import EngineSettings
from service.engines.base import Capabilities, Delta, GenerationRequest
from service.engines.pool import workers
from service.engines.pool.upkeep import Upkeep
from service.engines.pool.workers import (
    Connect,
    Losses,
    Member,
    PoolObserver,
    WaitingCall,
    WorkerAdmission,
    WorkerState,
    outage,
)
from service.engines.signals import (
    ScoreRequest,
    Scoring,
    SignalCall,
    SignalGenerator,
    SignalRequest,
    Span,
)

Result = TypeVar("Result")


class PoolGenerator:
    """An engine that distributes calls over the workers of `settings.urls`. `connect` creates the
    client of a worker.

    A call that fails before its first output is repeated at another worker, unless the worker
    refused it as invalid. One that fails later raises EngineInterrupted: the caller withdraws what
    it showed and calls again, and the pool sends that question to another worker. Calls with
    signals go to workers that run Revelator's plugin.
    """

    def __init__(
        self, name: str, settings: EngineSettings, connect: Connect, observer: PoolObserver
    ) -> None:
        self._name = name
        self._settings = settings
        self._observer = observer
        self._closed = False
        self._losses = Losses()
        self._members: dict[str, Member] = {}
        own = self._limits = workers.LIMITS
        self._admission = WorkerAdmission(
            name, settings, self._members, observer.worker_in_flight, own
        )
        self._upkeep = Upkeep(
            name, settings, self._members, connect, self._changed, observer.worker_gone, own
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What at least one worker supports. The context length is the shortest of all."""
        profiles = [member.profile for member in self._members.values() if member.profile]
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
        waiter = self._waiter(request, prompt, request.max_tokens)
        begun = False
        for retries in range(self._limits.retries, -1, -1):
            try:
                async with (
                    self._worker_for(waiter) as member,
                    closing(member.client.stream(request)) as deltas,
                ):
                    async for delta in deltas:
                        yield delta if begun else replace(delta, worker=member.name)
                        begun = begun or bool(delta.text)
                return
            except _WorkerLost as lost:
                if begun:
                    raise EngineInterrupted(lost.failure.detail) from None
                if not retries:
                    raise lost.failure from None
                waiter = replace(waiter, avoid=waiter.avoid | {lost.worker})

    @asynccontextmanager
    async def signals(self, request: SignalRequest) -> AsyncIterator[SignalCall]:
        """Start a call with signals. Raises EngineInterrupted if the worker is lost, because none
        of its output can be kept."""
        waiter = self._waiter(request, len(request.prompt), request.max_tokens, signals=True)
        try:
            async with (
                self._worker_for(waiter) as member,
                _with_plugin(member).signals(request) as call,
            ):
                yield call
        except _WorkerLost as lost:
            raise EngineInterrupted(lost.failure.detail) from None

    async def score(self, request: ScoreRequest) -> Scoring:
        length = len(request.text or "") + 4 * len(request.token_ids)
        waiter = self._waiter(request, length, 0, signals=True)
        return await self._again(waiter, lambda worker: worker.score(request))

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        waiter = WaitingCall("", turn=1, model=model or self._settings.model, signals=True)
        return await self._again(waiter, lambda worker: worker.token_spans(text, model))

    async def check(self) -> None:
        """Raise EngineFailure if no worker that serves the engine's model is up."""
        self._require_open()
        await self._upkeep.ready()
        self._require_open()
        if self._upkeep.problem and not self._members:
            raise EngineFailure(f"engine {self._name!r}: {self._upkeep.problem}")
        waiter = WaitingCall("", model=self._settings.model)
        if not any(member.serves(waiter) for member in self._members.values()):
            raise outage(self._name, waiter, self._members.values())

    def workers(self) -> list[WorkerState]:
        """All known workers, by name."""
        return [_state(member) for _, member in sorted(self._members.items())]

    async def aclose(self) -> None:
        """Stop the upkeep and close all connections; calls in progress fail."""
        self._closed = True
        await self._upkeep.aclose()
        for member in self._members.values():
            await member.disconnect()

    @asynccontextmanager
    async def _worker_for(self, waiter: WaitingCall) -> AsyncIterator[Member]:
        """Provide a worker for one attempt, and record the result in its health. Raises _Lost."""
        self._require_open()
        self._upkeep.start()
        async with self._admission.place(waiter) as member:
            self._require_open()  # it may have waited for its place
            try:
                yield member
            except EngineRefusal:
                raise
            except EngineFailure as failure:
                self._observer.worker_failure(member.name)
                self._losses.add(waiter.question, member.name)
                self._upkeep.call_failed(member, failure)
                raise _WorkerLost(member.name, failure) from None
            self._upkeep.call_succeeded(member)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")

    async def _again(
        self, waiter: WaitingCall, call: Callable[[SignalGenerator], Awaitable[Result]]
    ) -> Result:
        """Make a call with a single response, at one worker after the other until one succeeds."""
        retries = self._limits.retries
        while True:
            try:
                async with self._worker_for(waiter) as member:
                    return await call(_with_plugin(member))
            except _WorkerLost as lost:
                if not retries:
                    raise lost.failure from None
                retries -= 1
                waiter = replace(waiter, avoid=waiter.avoid | {lost.worker})

    def _waiter(
        self,
        request: GenerationRequest | SignalRequest | ScoreRequest,
        characters: int,
        tokens: int,
        *,
        signals: bool = False,
    ) -> WaitingCall:
        """Return the queue entry of a call. `characters` is the length of the prompt, counted as
        four to a token; `tokens` is the longest output.
        """
        model = request.model or self._settings.model
        avoid = self._losses.of(request.question)
        size = characters // 4 + tokens
        return WaitingCall(request.question, request.turn, size, model, signals, avoid)

    def _changed(self, member: Member) -> None:
        self._observer.worker_phase(member.name, member.health.phase)
        if member.health.usable:
            self._admission.dispatch()


class _WorkerLost(Exception):
    """A worker lost a call that another worker may be able to answer."""

    def __init__(self, worker: str, failure: EngineFailure) -> None:
        super().__init__(failure.detail)
        self.worker = worker
        self.failure = failure


def _with_plugin(member: Member) -> SignalGenerator:
    if not isinstance(member.client, SignalGenerator):
        raise TypeError(f"the client of {member.name} does not support token signals")
    return member.client


def _state(member: Member) -> WorkerState:
    profile, health = member.profile, member.health
    obstacle = profile.obstacle if profile else None
    return WorkerState(
        member.name,
        health.phase,
        profile.models if profile else (),
        profile.version if profile else None,
        bool(profile and profile.signals),
        member.calls,
        obstacle if health.usable else member.problem,
    )
