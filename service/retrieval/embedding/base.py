"""The `Embedder` protocol, and the text of a passage that is embedded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.core.domain import Passage
from service.retrieval.embedding.contract import EmbeddingContract

Vector = list[float]

BATCH = 32  # texts embedded at once, similar in length


class Embedder(Protocol):
    """Computes vectors according to `contract`. Raises ConfigurationError if the model cannot be
    used at all, another RevelatorError if it failed this time."""

    @property
    def contract(self) -> EmbeddingContract:
        """The contract that a collection stores when it is built."""

    def problem(self) -> str | None:
        """Return why it cannot run, or None. Loads nothing."""

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]: ...

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]: ...

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""


def passage_input(passage: Passage) -> str:
    """Return the text of a passage that is embedded: its title, then its text."""
    return f"{passage.title}. {passage.text}" if passage.title else passage.text
