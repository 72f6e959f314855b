"""The pool: many workers that look like one engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from service.concurrency import closing
from service.errors import EngineFailure, EngineInterrupted, EngineRefusal
from service.generation.base import Capabilities, Delta, GenerationRequest
from service.generation.pool.admission import Admission, outage
from service.generation.pool.member import Connect, Member
from service.generation.pool.report import PoolObserver, WorkerState
from service.generation.pool.upkeep import Upkeep
from service.generation.pool.waiting import Waiter
from service.settings import EngineSettings


class PoolGenerator:
    """An engine over the workers of `settings.urls`; `connect` makes the client of one.

    A call that fails before its first output is made again at another worker, unless the worker
    refused it as wrong. One that fails later raises EngineInterrupted: whoever showed its output
    withdraws it and calls again.
    """

    def __init__(
        self, name: str, settings: EngineSettings, connect: Connect, observer: PoolObserver
    ) -> None:
        self._name = name
        self._settings = settings
        self._observer = observer
        self._closed = False
        self._members: dict[str, Member] = {}
        self._admission = Admission(name, settings, self._members, observer.worker_in_flight)
        self._upkeep = Upkeep(name, settings, self._members, connect, self._changed)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What some worker can do; the context is the shortest of all."""
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
        if self._closed:
            raise EngineFailure(f"engine {self._name!r} is closed; the service is shutting down")
        self._upkeep.start()
        waiter = self._waiter(request)
        for attempt in range(self._settings.pool.retries + 1):
            begun = False
            try:
                async with (
                    self._admission.place(waiter) as member,
                    closing(self._at(member, request)) as deltas,
                ):
                    async for delta in deltas:
                        yield delta if begun else replace(delta, worker=member.name)
                        begun = True
                return
            except EngineRefusal:
                raise
            except _Lost as lost:
                if begun:
                    raise EngineInterrupted(lost.failure.detail) from None
                if attempt == self._settings.pool.retries:
                    raise lost.failure from None
                waiter = replace(waiter, avoid=waiter.avoid | {lost.worker})

    async def check(self) -> None:
        """Raises EngineFailure when no worker is up that serves the engine's model."""
        await self._upkeep.ready()
        if self._upkeep.problem and not self._members:
            raise EngineFailure(f"engine {self._name!r}: {self._upkeep.problem}")
        waiter = Waiter("", model=self._settings.model)
        if not any(member.serves(waiter) for member in self._members.values()):
            raise outage(self._name, waiter, self._members.values())

    def workers(self) -> list[WorkerState]:
        """All workers known now, by name."""
        return [_state(member) for _, member in sorted(self._members.items())]

    async def aclose(self) -> None:
        """End the upkeep and all connections; running calls fail."""
        self._closed = True
        await self._upkeep.aclose()
        for member in self._members.values():
            await member.disconnect()

    async def _at(self, member: Member, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """One attempt at one worker; its health hears how it went."""
        try:
            async with closing(member.client.stream(request)) as deltas:
                async for delta in deltas:
                    yield delta
        except EngineRefusal:
            raise
        except EngineFailure as failure:
            self._observer.worker_failure(member.name)
            self._upkeep.call_failed(member, failure)
            raise _Lost(member.name, failure) from None
        self._upkeep.call_succeeded(member)

    def _waiter(self, request: GenerationRequest) -> Waiter:
        return Waiter(
            request.question,
            request.turn,
            cost(request),
            request.model or self._settings.model,
        )

    def _changed(self, member: Member) -> None:
        self._observer.worker_phase(member.name, member.health.phase)
        if member.health.usable:
            self._admission.dispatch()


class _Lost(Exception):
    """A worker lost a call; another may do it."""

    def __init__(self, worker: str, failure: EngineFailure) -> None:
        super().__init__(failure.detail)
        self.worker = worker
        self.failure = failure


def cost(request: GenerationRequest) -> int:
    """About how many tokens a call is: a prompt's four characters each, and its longest output."""
    prompt = len(request.prompt or "") + sum(len(message.content) for message in request.messages)
    return prompt // 4 + request.max_tokens


def _state(member: Member) -> WorkerState:
    profile, health = member.profile, member.health
    return WorkerState(
        member.name,
        health.phase,
        profile.models if profile else (),
        profile.version if profile else None,
        bool(profile and profile.signals),
        member.calls,
        None if health.usable else member.problem,
    )
