"""A retriever over a small corpus, on a pair of stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from service.retrieval.base import Retriever
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import SETTINGS


@asynccontextmanager
async def world(
    folder: Path, backends: Backends, corpora: Mapping[str, Sequence[Any]]
) -> AsyncIterator[Retriever]:
    """Collections by name with their documents, which are gone at the end."""
    embedder = HashingEmbedder()
    collections = Collections(folder, embedder, Sample(folder / "no-sample"), backends)
    try:
        for name, documents in corpora.items():
            await backends.drop(name)
            await collections.create(name)
            await ingest_documents(documents, name, collections)
        yield HybridRetriever(collections, embedder, SETTINGS)
        for name in corpora:
            await collections.delete(name)
    finally:
        await collections.aclose()
        await backends.aclose()
