"""The teacher: an engine that is called with retries while it is limited or unavailable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from service.core.errors import (
    EngineFailure,
    EngineLimited,
    EngineRefusal,
    EngineTimeout,
    Overloaded,
)
from service.engines.base import GenerationRequest, Generator, complete
from service.engines.reasoning import strip_thinking
from service.workshop.synthesis.contract import AskTeacher, Dropped, Reply

FAILURES: Final = 5  # failures of one call after which it is still retried
LIMITS: Final = 50  # rate limits of one call; the server is available and states when to retry
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0


class TeacherOut(Exception):
    """Raised if a call failed after all retries. The next run processes its item again."""

    def __init__(self, failure: EngineFailure | Overloaded) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass(slots=True)
class Spent:
    """The cost of an item or of a run. `bad` counts unusable replies, by stage and reason."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    def add(self, other: Spent) -> None:
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.bad.update(other.bad)


def wait_after(failure: EngineFailure | Overloaded, failures: int) -> float | None:
    """Return the delay in seconds before the next attempt after `failures` failures, or None if
    retrying is pointless."""
    if isinstance(failure, EngineRefusal):
        return None
    growing = min(FIRST_WAIT_S * 2 ** (failures - 1), LONGEST_WAIT_S)
    if isinstance(failure, EngineLimited):
        return None if failures > LIMITS else max(growing, failure.retry_after or 0)
    return None if failures > FAILURES else growing


def kind_of(failure: EngineFailure | Overloaded) -> str:
    if isinstance(failure, EngineLimited):
        return "rate-limited"
    return "timed out" if isinstance(failure, EngineTimeout) else "engine failed"


class Teacher:
    """Calls `engine` with `model`; None selects the engine's default model.

    `label` names the model in every row. No call starts while the server limits its callers.
    `sleep` and `clock` (in seconds) can be replaced in tests.
    """

    def __init__(
        self,
        engine: Generator,
        label: str,
        model: str | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.label = label
        self._model = model
        self._sleep = sleep
        self._clock = clock
        self._not_before = 0.0

    async def say(self, ask: AskTeacher, seed: int, spent: Spent) -> Reply:
        """Return one reply and add its cost to `spent`.

        Raises Dropped if the engine rejects the call, and TeacherOut if it is unavailable.
        """
        request = GenerationRequest(
            messages=ask.messages,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=seed,
            stop=ask.stop,
            json_schema=ask.json_schema,
            model=self._model,
        )
        failures = 0
        while True:
            await self._until_allowed()
            spent.calls += 1
            try:
                completion = await complete(self.engine, request)
            except (EngineFailure, Overloaded) as failure:
                failures += 1
                spent.bad[f"{ask.stage}: {kind_of(failure)}"] += 1
                await self._wait(failure, failures, ask.stage)
            else:
                spent.prompt_tokens += completion.usage.prompt_tokens
                spent.completion_tokens += completion.usage.completion_tokens
                return Reply(strip_thinking(completion.text).strip(), completion.finish)

    async def _wait(self, failure: EngineFailure | Overloaded, failures: int, stage: str) -> None:
        seconds = wait_after(failure, failures)
        if isinstance(failure, EngineRefusal):
            raise Dropped(f"{stage}: refused by the teacher") from failure
        if seconds is None:
            raise TeacherOut(failure) from failure
        if isinstance(failure, EngineLimited):
            self._not_before = max(self._not_before, self._clock() + seconds)
        else:
            await self._sleep(seconds)

    async def _until_allowed(self) -> None:
        while (seconds := self._not_before - self._clock()) > 0:
            await self._sleep(seconds)
