"""Vectors of words alone, for tests and for trying the stores on a base install."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import HASHING, EmbeddingContract
from service.text import content_words


class HashingEmbedder:
    """Content words hashed into 384 signed buckets, without weights or torch.

    It matches words, as BM25 does, not meanings.
    """

    contract: EmbeddingContract = HASHING

    def problem(self) -> str | None:
        return None

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return [_vector(text) for text in texts]

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return [_vector(text) for text in texts]

    async def aclose(self) -> None:
        """Do nothing."""


def _vector(text: str) -> Vector:
    vector = [0.0] * HASHING.dimension
    for word in content_words(text) or {text}:
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        number = int.from_bytes(digest)
        vector[number % len(vector)] += 1.0 if number >> 31 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    if not length:
        return [1.0] + [0.0] * (len(vector) - 1)
    return [value / length for value in vector]
