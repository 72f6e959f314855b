"""What an EfficientRAG run knows, between its parts."""

from __future__ import annotations

from dataclasses import dataclass

from service.answer.events import TokenRole
from service.answer.inquiry import Inquiry, Scope
from service.encoders.base import Labelling
from service.strategies.efficientrag.decisions import Read
from service.strategies.efficientrag.options import Options
from service.strategies.efficientrag.pool import Pool


@dataclass(slots=True)
class Run:
    """`following` is the next query, or how the search ended; `hops` the retrievals so far."""

    scope: Scope
    question: str
    as_role: TokenRole
    options: Options
    labelling: Labelling
    pool: Pool
    following: str | Read
    hops: int = 0

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry
