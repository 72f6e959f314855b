"""The `Embedder` protocol, and what is embedded of a passage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.domain import Passage
from service.retrieval.embedding.contract import EmbeddingContract

Vector = list[float]

BATCH = 32  # texts embedded at once, similar in length


class Embedder(Protocol):
    """Vectors as `contract` says. Raises ConfigurationError when the model cannot be had at all,
    another RevelatorError when it failed this time."""

    @property
    def contract(self) -> EmbeddingContract:
        """A collection remembers with which one it was built."""

    def problem(self) -> str | None:
        """Why it cannot run, or None. Loads nothing."""

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]: ...

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]: ...

    async def aclose(self) -> None:
        """Ends connections; a second call does nothing."""


def passage_input(passage: Passage) -> str:
    """What is embedded of a passage: its title, then its text."""
    return f"{passage.title}. {passage.text}" if passage.title else passage.text
