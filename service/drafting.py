"""Engine calls that DRAGIN makes in a step: with signals, or cut as soon as enough is there.

Under the question's clock, and counted to the step whatever their end, as the step's own calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeGuard, TypeVar

from service.calling import EngineCall, Role
from service.concurrency import closing, deadline
from service.errors import EngineInterrupted
from service.events import Token, Withdraw
from service.generation.base import GenerationRequest, Generator, TokenUsage
from service.generation.signals import (
    ContextRows,
    ScoreRequest,
    Scoring,
    SignalCall,
    SignalDelta,
    SignalGenerator,
    SignalRequest,
    Span,
)
from service.inquiry import RESTARTS, OpenStep

T = TypeVar("T")


class DraftCall:
    """A draft under way: iterate over it once; `rows` ends it."""

    def __init__(self, call: SignalCall, step: OpenStep, counted: EngineCall) -> None:
        self._call = call
        self._step = step
        self._counted = counted
        self.tokens = 0

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        async with closing(aiter(self._call)) as deltas:
            while True:
                delta = await _timed(self._step, lambda: anext(deltas, None))
                if delta is None:
                    return
                self.tokens += len(delta.tokens)
                self._counted.see_tokens(len(delta.tokens), delta.usage)
                yield delta

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        return await _timed(self._step, lambda: self._call.rows(tokens))


@asynccontextmanager
async def drafting(step: OpenStep, request: SignalRequest) -> AsyncIterator[DraftCall]:
    """A generation with signals by the reader. Leaving ends it at the engine; what it was spared
    of `max_tokens` counts as saved.

    Raises DeadlineExceeded, EngineFailure; ValueError where the reader gives no signals.
    """
    role = step.inquiry.roles.reader
    generator = signals_of(role)
    counted = step.begin(role, request)
    try:
        async with generator.signals(step.addressed(role, request)) as call:
            draft = DraftCall(call, step, counted)
            yield draft
        if counted.usage is None:
            await _cut(step, counted, request.prompt, request.max_tokens, draft.tokens)
    finally:
        step.count(counted)


async def score(step: OpenStep, request: ScoreRequest) -> Scoring:
    """Text read by the reader's engine: one call, without output."""
    role = step.inquiry.roles.reader
    counted = step.begin(role, request)
    try:
        addressed = step.addressed(role, request)
        scoring = await _timed(step, lambda: signals_of(role).score(addressed))
        counted.see_tokens(0, scoring.usage)
        return scoring
    finally:
        step.count(counted)


async def token_spans(step: OpenStep, text: str) -> tuple[Span, ...]:
    """Where the tokens of the reader's model lie in a text."""
    role = step.inquiry.roles.reader
    return await _timed(step, lambda: signals_of(role).token_spans(text, role.model))


async def writing(
    step: OpenStep, request: GenerationRequest, enough: Callable[[], bool]
) -> AsyncIterator[str]:
    """A plain generation by the reader, piece by piece, ended once `enough` says so."""
    role = step.inquiry.roles.reader
    counted = step.begin(role, request)
    try:
        async with closing(role.generator.stream(step.addressed(role, request))) as deltas:
            while not enough():
                delta = await _timed(step, lambda: anext(deltas, None))
                if delta is None:
                    break
                counted.see(delta)
                yield delta.text
        if counted.usage is None:
            prompt, most = request.prompt or "", request.max_tokens
            await _cut(step, counted, prompt, most, counted.pieces)
    finally:
        step.count(counted)


def gives_signals(generator: Generator) -> TypeGuard[SignalGenerator]:
    return isinstance(generator, SignalGenerator) and generator.capabilities.token_signals


def signals_of(role: Role) -> SignalGenerator:
    """Raises ValueError: whether a reader gives signals is asked before a question begins."""
    if not gives_signals(role.generator):
        raise ValueError(f"the engine {role.generator.name!r} does not provide token signals")
    return role.generator


async def _cut(step: OpenStep, counted: EngineCall, prompt: str, most: int, written: int) -> None:
    """Count a call that was ended on purpose, so that its engine never told its usage."""
    tokens = len(await token_spans(step, prompt)) + 1
    counted.see_tokens(0, TokenUsage(tokens, written))
    if step.inquiry.observer:
        step.inquiry.observer.saved(max(0, most - written))


async def _timed(step: OpenStep, call: Callable[[], Awaitable[T]]) -> T:
    with step.inquiry.generation_time, deadline(step.inquiry.budget.step_remaining_s):
        return await call()


async def begun_again(
    attempt: Callable[[], AsyncIterator[Token]], void: Callable[[], Withdraw | None]
) -> AsyncIterator[Token | Withdraw]:
    """The tokens of an attempt, made again where a pool's worker is lost; `void` forgets what the
    lost one wrote, and withdraws it where it was shown."""
    for restarts in range(RESTARTS, -1, -1):
        try:
            async with closing(attempt()) as tokens:
                async for token in tokens:
                    yield token
            return
        except EngineInterrupted:
            if not restarts:
                raise
        if withdraw := void():
            yield withdraw
