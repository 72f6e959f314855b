"""A text that the model writes in the open step, read piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

from service.answer.calls import with_restarts
from service.answer.events import Token, Withdraw
from service.engines.base import Delta, FinishReason, GenerationRequest
from service.strategies.drafting.calls import write_until
from service.strategies.drafting.run import DraftingRun


class DraftReader(Protocol):
    """Reads a text while it is written. `kept` is the part of it that is accepted so far; `done`
    means that no more text is needed."""

    text: str
    done: bool

    @property
    def kept(self) -> str: ...

    def feed(self, piece: str) -> str: ...

    def finish(self) -> str: ...


class Piece(NamedTuple):
    """One delta of a text: usually a token. `probability` is None if it was not asked for."""

    text: str
    probability: float | None


@dataclass(slots=True)
class WrittenText:
    """What one call wrote. `finish` is None if it was ended early."""

    reading: DraftReader
    pieces: list[Piece] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def kept(self) -> str:
        return self.reading.kept

    @property
    def tokens(self) -> list[Piece]:
        """The pieces of what is kept: those that begin before its end."""
        text = "".join(piece.text for piece in self.pieces)
        end = len(text) - len(text.lstrip()) + len(self.kept)
        starts = accumulate((len(piece.text) for piece in self.pieces), initial=0)
        return [piece for piece, start in zip(self.pieces, starts, strict=False) if start < end]

    @property
    def over(self) -> bool:
        """Whether the model has ended its text."""
        return self.finish == "stop" and self.kept == self.reading.text.rstrip()

    def take(self, delta: Delta) -> None:
        if delta.text:
            chance = None if delta.logprob is None else math.exp(min(0.0, delta.logprob))
            self.pieces.append(Piece(delta.text, chance))
        self.finish = delta.finish or self.finish


@dataclass(slots=True, kw_only=True)
class PieceRun(DraftingRun):
    """A question whose text is written by `write` alone. Its `used` tokens are counted as they
    arrive, without asking the engine.
    """

    used: int = 0

    async def fills_limit(self) -> bool:
        return self.used >= self.options.limit


async def write(
    run: DraftingRun,
    read: Callable[[], DraftReader],
    most: int | None = None,
    *,
    logprobs: bool = False,
) -> WrittenText:
    """Continue the text in the open step by at most `most` tokens (default: L), as tokens of a
    draft. If a pool's worker is lost, the call restarts with another `read()`.
    """
    step, written = run.step, WrittenText(read())
    request = GenerationRequest(
        prompt=run.layout.prompt().text,
        max_tokens=run.options.limit if most is None else most,
        stop=run.stops,
        logprobs=logprobs,
    )

    async def take(delta: Delta) -> bool:
        written.take(delta)
        if text := written.reading.feed(delta.text):
            await step.emit(Token(role="draft", text=text))
        return written.reading.done

    async def call() -> None:
        await write_until(step, request, take)
        if not written.reading.done and (text := written.reading.finish()):
            await step.emit(Token(role="draft", text=text))

    async def void() -> None:
        nonlocal written
        shown, written = bool(written.kept), WrittenText(read())
        if shown:
            await step.emit(Withdraw(role="draft", reason="restart"))

    await with_restarts(call, void)
    run.count_sentences(written.reading.text)
    return written
