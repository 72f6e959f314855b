"""Roles, the state of one engine call, and its restart."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar, cast

from service.core.concurrency import Deadline
from service.core.domain import RoleName
from service.core.errors import EngineInterrupted
from service.encoders.efficientrag import Labelling
from service.encoders.extractor import Extractor
from service.encoders.router import Classifier
from service.engines.base import (
    Delta,
    FinishReason,
    GenerationRequest,
    Generator,
    Message,
    TokenUsage,
)
from service.engines.signals import ScoreRequest
from service.prompts.templates import TemplateSet

AnyRequest = GenerationRequest | ScoreRequest
T = TypeVar("T")
RESTARTS: Final = 2  # of a call whose worker was lost during output


@dataclass(frozen=True, slots=True)
class Role:
    """The engine, the model or adapter at it, and the prompts of a role.

    If the engine is `pooled`, it reports the metrics of its workers itself.
    """

    name: RoleName
    generator: Generator
    model: str | None
    templates: TemplateSet
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a question. `labelling` is for loops that judge and rewrite with encoders; a
    `classifier` routes in place of the Revelator, an `extractor` reads passages in place of the
    reader's model, and a `verifier` reads them again where the model answered."""

    revelator: Role
    reader: Role
    judge: Role
    labelling: Labelling | None = None
    classifier: Classifier | None = None
    extractor: Extractor | None = None
    verifier: Extractor | None = None

    def __getitem__(self, name: RoleName) -> Role:
        role: Role = getattr(self, name)
        return role

    def __iter__(self) -> Iterator[Role]:
        yield from (self.revelator, self.reader, self.judge)


@dataclass(slots=True)
class EngineCall:
    """One engine call, which ends when its context is left, and what it has produced so far
    (seconds; `logprob` is a sum, if requested, and `best` has those of each token's alternatives).

    `estimated` is the number of tokens that it is expected to use; `ended` counts it, and
    `end_span` ends its span. `deltas` are what is still to come of a generation, each within the
    `limit` of the call. Its context is asynchronous and closes both.
    """

    role: Role
    estimated: int
    ended: EndCall
    end_span: EndCall | None
    deltas: AsyncIterator[Delta] = field(init=False)
    limit: Deadline = field(init=False)
    finish: FinishReason | None = None
    started: float = field(default_factory=time.monotonic)
    first: float = 0.0
    pieces: int = 0
    logprob: float | None = None
    best: list[tuple[float, ...]] = field(default_factory=list)
    usage: TokenUsage | None = None
    worker: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with self:
            self.limit.close()
            await cast("AsyncGenerator[Delta, None]", self.deltas).aclose()

    def see(self, delta: Delta) -> None:
        self.see_tokens(len(delta.tokens) or 1, delta.usage)
        self.worker = delta.worker or self.worker
        self.finish = delta.finish or self.finish
        if delta.logprob is not None:
            self.logprob = (self.logprob or 0.0) + delta.logprob
        self.best += delta.best

    def see_tokens(self, count: int, usage: TokenUsage | None) -> None:
        self.first = self.first or self.seconds
        self.pieces += count
        self.usage = usage or self.usage

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


EndCall = Callable[[EngineCall], None]


async def with_restarts(
    call: Callable[[], Awaitable[T]], void: Callable[[], Awaitable[None]] | None = None
) -> T:
    """Await a call, and restart it if a pool's worker is lost during output, at most `RESTARTS`
    times. `void` withdraws the output of the lost worker.
    """
    for _ in range(RESTARTS):
        try:
            return await call()
        except EngineInterrupted:
            if void is not None:
                await void()
    return await call()


def chat(prompt: str, **options: Any) -> GenerationRequest:
    """Return the call whose only turn is the prompt."""
    return GenerationRequest(messages=(Message("user", prompt),), **options)


def texts_of(request: AnyRequest) -> list[str]:
    """Return the texts that a call sends to its engine."""
    if isinstance(request, ScoreRequest):
        return [request.text or ""]
    return [request.prompt or "", *(message.content for message in request.messages)]


def expected_tokens(request: AnyRequest, texts: Sequence[str]) -> int:
    """Return an upper estimate of the tokens of a call that sends `texts`, assuming four characters
    per token of the prompt.
    """
    size = len(request.token_ids) if isinstance(request, ScoreRequest) else request.max_tokens
    return size + sum(map(len, texts)) // 4
