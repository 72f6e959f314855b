"""Engine calls of a draft: with token signals, or ended as soon as enough text was written.

They are limited by the question's time and counted to their step, however they end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeGuard

from service.answer.calls import EngineCall, Role
from service.answer.inquiry import OpenStep
from service.core.concurrency import closing
from service.engines.base import Delta, GenerationRequest, Generator, TokenUsage
from service.engines.signals import (
    ContextRows,
    ScoreRequest,
    Scoring,
    SignalCall,
    SignalDelta,
    SignalGenerator,
    SignalRequest,
    Span,
)

LETTERS_PER_TOKEN: Final = 4  # for engines that do not report their tokens


class DraftCall:
    """A draft in progress. Iterate over it once; `rows` ends it."""

    def __init__(self, call: SignalCall, step: OpenStep, counted: EngineCall) -> None:
        self._call = call
        self._step = step
        self._counted = counted
        self.tokens = 0

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        async with closing(aiter(self._call)) as deltas:
            while delta := await self._step.timed(anext(deltas, None)):
                self.tokens += len(delta.tokens)
                self._counted.see_tokens(len(delta.tokens), delta.usage)
                yield delta

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        return await self._step.timed(self._call.rows(tokens))


@asynccontextmanager
async def drafting(step: OpenStep, request: SignalRequest) -> AsyncIterator[DraftCall]:
    """Generate with signals by the reader. Leaving the context aborts the call; the unused part of
    `max_tokens` counts as saved.

    Raises DeadlineExceeded and EngineFailure, and ValueError if the reader provides no signals.
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
    """Score a text with the reader's engine: one call without output."""
    role = step.inquiry.roles.reader
    counted = step.begin(role, request)
    try:
        addressed = step.addressed(role, request)
        scoring = await step.timed(signals_of(role).score(addressed))
        counted.see_tokens(0, scoring.usage)
        return scoring
    finally:
        step.count(counted)


async def count_tokens(step: OpenStep, text: str) -> int:
    """Return the number of the model's tokens in a text. Four characters count as one token if the
    engine does not report its tokens.
    """
    if not gives_signals(step.inquiry.roles.reader.generator):
        return -(-len(text) // LETTERS_PER_TOKEN)
    return len(await token_spans(step, text))


async def token_spans(step: OpenStep, text: str) -> tuple[Span, ...]:
    """Return the spans of the model's tokens in a text."""
    role = step.inquiry.roles.reader
    return await step.timed(signals_of(role).token_spans(text, role.model))


async def write_until(
    step: OpenStep, request: GenerationRequest, take: Callable[[Delta], Awaitable[bool]]
) -> None:
    """Generate plain text by the reader. `take` receives its deltas, and returns True to end the
    call."""
    role = step.inquiry.roles.reader
    counted = step.begin(role, request)
    try:
        async with closing(role.generator.stream(step.addressed(role, request))) as deltas:
            while delta := await step.timed(anext(deltas, None)):
                counted.see(delta)
                if await take(delta):
                    break
        if counted.usage is None:
            prompt, most = request.prompt or "", request.max_tokens
            await _cut(step, counted, prompt, most, counted.pieces)
    finally:
        step.count(counted)


def gives_signals(generator: Generator) -> TypeGuard[SignalGenerator]:
    return isinstance(generator, SignalGenerator) and generator.capabilities.token_signals


def signals_of(role: Role) -> SignalGenerator:
    """Return the signals of the reader's engine. Raises ValueError if it has none, which should
    have been checked before the question began."""
    if not gives_signals(role.generator):
        raise ValueError(f"the engine {role.generator.name!r} does not provide token signals")
    return role.generator


async def _cut(step: OpenStep, counted: EngineCall, prompt: str, most: int, written: int) -> None:
    """Count a call that was ended early, so that its engine never reported its usage."""
    tokens = await count_tokens(step, prompt) + 1
    counted.see_tokens(0, TokenUsage(tokens, written))
    if step.inquiry.observer:
        step.inquiry.observer.saved(max(0, most - written))
