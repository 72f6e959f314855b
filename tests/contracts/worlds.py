"""A retriever over a small corpus, on a pair of stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from service.retrieval.base import Retriever
from service.retrieval.collections.backends import Backends
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import SETTINGS, opened


@asynccontextmanager
async def world(
    folder: Path, backends: Backends, corpora: Mapping[str, Sequence[Any]]
) -> AsyncIterator[Retriever]:
    """Collections by name with their documents, which are gone at the end."""
    try:
        async with opened(folder, backends=backends) as collections:
            for name, documents in corpora.items():
                await backends.drop(name)
                await collections.create(name)
                await ingest_documents(documents, name, collections)
            yield HybridRetriever(collections, HashingEmbedder(), SETTINGS)
            for name in corpora:
                await collections.delete(name)
    finally:
        await backends.aclose()
