"""Opens and closes all that retrieval needs: data directory, collections, embedder, search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import to_thread

from service.core.locks import DataDirectory, acquire
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.retrieval.collections.backends import open_backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.elasticsearch import PATIENCE_S
from service.retrieval.embedding.contract import Embedder
from service.retrieval.embedding.embedders import open_embedder
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.search.reranking import BACKEND, Reranking, open_reranker


@dataclass(frozen=True, slots=True)
class Retrieval:
    """An owned data directory, its collections, and what searches them."""

    directory: DataDirectory
    embedder: Embedder
    collections: Collections
    retriever: HybridRetriever


@asynccontextmanager
async def open_retrieval(
    settings: Settings,
    metrics: Metrics | None = None,
    embedder: Embedder | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Retrieval]:
    """Lock `settings.data_dir`, open its collections when they are used, and close them at the end.
    Uses the `embedder` that the settings name, if none is given.

    `patience_s`: seconds that a writer waits for another gateway. Raises StoreBusy if another
    process holds the directory, and ConfigurationError for an unknown embedding model. No model is
    loaded: `retriever.warm()` does that, before the first question.
    """
    metrics = metrics or Metrics()
    retried = partial(metrics.count, "retrieval_retries_total")
    if embedder is None:
        embedder = open_embedder(settings.retrieval, partial(retried, "embedding"))
    reranking = None
    with await to_thread.run_sync(acquire, settings.data_dir) as directory:
        backends = open_backends(settings.retrieval, patience_s)
        collections = Collections(
            settings.data_dir, embedder, backends=backends, keep_files=settings.ingest.keep_files
        )
        if options := settings.retrieval.reranker:
            reranker = open_reranker(options, partial(retried, BACKEND))
            reranking = Reranking(reranker, options.top_n, settings.retrieval, metrics)
        retriever = HybridRetriever(collections, embedder, settings.retrieval, metrics, reranking)
        try:
            yield Retrieval(directory, embedder, collections, retriever)
        finally:
            with anyio.CancelScope(shield=True):
                await retriever.aclose()
                await backends.aclose()
                await embedder.aclose()
                if reranking is not None:
                    await reranking.aclose()
