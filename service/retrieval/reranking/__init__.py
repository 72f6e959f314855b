"""Rerankers: a cross-encoder reads query and passage together, on a server or in this process."""

from __future__ import annotations

from service.retrieval.reranking.base import Reranker
from service.retrieval.reranking.factory import open_reranker
from service.retrieval.reranking.ordering import Reranking

__all__ = ["Reranker", "Reranking", "open_reranker"]
