"""Vectors of queries and passages: the contract, and one module for each way to compute them."""

from __future__ import annotations

from service.retrieval.embedding.base import BATCH, Embedder, Vector, passage_input
from service.retrieval.embedding.contract import (
    HASHING,
    MINILM,
    PRESETS,
    EmbeddingContract,
    differences,
)
from service.retrieval.embedding.factory import open_embedder
from service.retrieval.embedding.hashing import HashingEmbedder

__all__ = [
    "BATCH",
    "HASHING",
    "MINILM",
    "PRESETS",
    "Embedder",
    "EmbeddingContract",
    "HashingEmbedder",
    "Vector",
    "differences",
    "open_embedder",
    "passage_input",
]
