"""The budget of a question: its limits, what it has used, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.core.domain import StoppedBy
from service.core.errors import BudgetExceeded

RESERVE_SHARE = 0.2  # no step starts if less than this share of the time is left,
RESERVE_CALLS = 1.5  # or less than this multiple of the question's slowest reader call
ANSWER_CALLS = 1  # engine calls that are reserved for the answer; of the tokens, RESERVE_SHARE is


@dataclass(slots=True)
class Budget:
    """Counts a question's usage against its limits: seconds, retrievals, engine calls and tokens
    (prompt + completion). `clock` is in seconds, monotonic.

    Calls and retrievals are counted before they start, so that they never exceed their limits. The
    tokens of a call are known at its end. Until then an estimate counts (`under_way`), so the limit
    may be exceeded by what calls in progress use beyond their estimates.
    """

    timeout_s: float = 60.0
    max_retrievals: int = 64
    max_llm_calls: int = 256
    max_tokens: int = 400_000
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    retrievals: int = 0
    llm_calls: int = 0
    tokens: int = 0
    under_way: int = 0
    slowest_reader_s: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.timeout_s - self.elapsed_s)

    @property
    def reserve_s(self) -> float:
        """Seconds reserved for writing the final answer from the evidence."""
        share = RESERVE_SHARE * self.timeout_s
        return max(share, RESERVE_CALLS * self.slowest_reader_s)

    @property
    def step_remaining_s(self) -> float:
        """Seconds that a step may still take without using the reserve."""
        return max(0.0, self.remaining_s - self.reserve_s)

    def exhausted(self) -> StoppedBy | None:
        """Return why no further step may start: ``"deadline"``, ``"budget"``, or None if one
        may.
        """
        if self.remaining_s < self.reserve_s:
            return "deadline"
        spent = (
            self.retrievals >= self.max_retrievals
            or self.llm_calls >= self.max_llm_calls
            or self.tokens >= self._most_tokens(final=False)
        )
        return "budget" if spent else None

    def start_call(self, tokens: int, *, final: bool = False) -> None:
        """Count one engine call, or retry, that may take `tokens`. A `final` call writes the
        question's answer, and may use the reserve. Raises BudgetExceeded.
        """
        kept = 0 if final else ANSWER_CALLS
        if self.llm_calls + kept >= self.max_llm_calls:
            raise BudgetExceeded(_reached("max_llm_calls", self.max_llm_calls))
        if self.tokens + self.under_way >= self._most_tokens(final):
            raise BudgetExceeded(_reached("max_tokens", self.max_tokens))
        self.llm_calls += 1
        self.under_way += tokens

    def allows(self, calls: int) -> bool:
        """Whether so many further calls leave what is reserved for the question's answer."""
        return self.llm_calls + calls + ANSWER_CALLS <= self.max_llm_calls

    @property
    def may_answer(self) -> bool:
        """Whether a call that writes the question's answer may start."""
        return (
            self.remaining_s > 0
            and self.llm_calls < self.max_llm_calls
            and self.tokens + self.under_way < self._most_tokens(final=True)
        )

    def end_call(self, estimated: int, tokens: int, seconds: float, *, reader: bool) -> None:
        """Count the tokens that a call used, in place of the estimate."""
        self.under_way -= estimated
        self.tokens += tokens
        if reader:
            self.slowest_reader_s = max(self.slowest_reader_s, seconds)

    def start_retrieval(self) -> None:
        """Count one search. Raises BudgetExceeded."""
        if self.retrievals >= self.max_retrievals:
            raise BudgetExceeded(_reached("max_retrievals", self.max_retrievals))
        self.retrievals += 1

    def _most_tokens(self, final: bool) -> float:
        return self.max_tokens * (1 if final else 1 - RESERVE_SHARE)


def _reached(limit: str, most: int) -> str:
    return (
        f"the question has reached limits.{limit} ({most}); raise it in the settings, or ask with "
        "a smaller max_steps"
    )


class Stopwatch:
    """Wall time during which at least one thing ran; re-entrant, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if self._running == 0:
            self._since = time.monotonic()
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        if self._running == 0:
            self.seconds += time.monotonic() - self._since
