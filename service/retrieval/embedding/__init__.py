"""Vectors of queries and passages: the contract, and one module for each way to compute them."""

from __future__ import annotations

from service.retrieval.embedding.contract import (
    BATCH,
    HASHING,
    MINILM,
    PRESETS,
    Embedder,
    EmbeddingContract,
    Vector,
    differences,
    finite,
    passage_input,
)
from service.retrieval.embedding.embedders import HashingEmbedder, open_embedder

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
    "finite",
    "open_embedder",
    "passage_input",
]
