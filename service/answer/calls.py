"""Roles, and the state of one engine call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from service.core.domain import RoleName
from service.encoders.base import Labelling
from service.encoders.router.base import Classifier
from service.engines.base import Delta, FinishReason, Generator, TokenUsage
from service.prompts.templates import TemplateSet


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
    `classifier` routes in place of the Revelator."""

    revelator: Role
    reader: Role
    judge: Role
    labelling: Labelling | None = None
    classifier: Classifier | None = None

    def __getitem__(self, name: RoleName) -> Role:
        role: Role = getattr(self, name)
        return role

    def __iter__(self) -> Iterator[Role]:
        yield from (self.revelator, self.reader, self.judge)


class EngineCall:
    """What one engine call has produced so far (seconds; `logprob` is a sum, if requested).
    `estimated` is the number of tokens that it is expected to use."""

    __slots__ = (
        "estimated", "finish", "first", "logprob", "pieces", "role", "started", "usage", "worker",
    )  # fmt: skip

    def __init__(self, role: Role, estimated: int = 0) -> None:
        self.role = role
        self.estimated = estimated
        self.finish: FinishReason | None = None
        self.started = time.monotonic()
        self.first = 0.0
        self.pieces = 0
        self.logprob: float | None = None
        self.usage: TokenUsage | None = None
        self.worker: str | None = None

    def see(self, delta: Delta) -> None:
        self.see_tokens(1, delta.usage)
        self.worker = delta.worker or self.worker
        self.finish = delta.finish or self.finish
        if delta.logprob is not None:
            self.logprob = (self.logprob or 0.0) + delta.logprob

    def see_tokens(self, count: int, usage: TokenUsage | None) -> None:
        self.first = self.first or self.seconds
        self.pieces += count
        self.usage = usage or self.usage

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started
