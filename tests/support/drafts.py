"""Drafts with signals, read to their ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from service.core.concurrency import closing
from service.engines.base import Delta, GenerationRequest, Generator
from service.engines.signals import ContextRows, DraftToken, Span, context_rows


class Draft(NamedTuple):
    prompt: str
    tokens: list[DraftToken]
    context: tuple[Span, ...]
    last: Delta

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    def rows(self, wanted: Iterable[int] | None = None) -> ContextRows:
        """The rows of these tokens, else of all."""
        wanted = range(len(self.tokens)) if wanted is None else wanted
        return context_rows(self.prompt, self.context, self.tokens, wanted)


async def drafted(
    engine: Generator, request: GenerationRequest, most_deltas: int | None = None
) -> Draft:
    """Read a draft, or its first deltas."""
    tokens: list[DraftToken] = []
    context: tuple[Span, ...] = ()
    last = Delta("")
    async with closing(engine.stream(request)) as deltas:
        async for last in deltas:
            tokens += last.tokens
            context = context or last.context
            most_deltas = None if most_deltas is None else most_deltas - 1
            if most_deltas == 0:
                break
    return Draft(request.prompt or "", tokens, context, last)


def with_attention(prompt: str, most: int, **fields: object) -> GenerationRequest:
    values: dict[str, object] = {"signals": "attention", **fields}
    return GenerationRequest(prompt=prompt, max_tokens=most, **values)  # type: ignore[arg-type]
