"""Vectors of queries: remembered, and those of concurrent questions embedded together."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

from service.core.settings import RetrievalSettings
from service.retrieval.embedding import Embedder
from service.retrieval.search.cache import Cache
from service.retrieval.search.guard import Guard
from service.retrieval.search.observer import SearchObserver
from service.retrieval.stores.batcher import Batcher

QueryVector = Sequence[float]  # kept as 32-bit floats, an eighth of a list's memory


class QueryEmbedding:
    """The queries of one call that are not remembered go to the embedder as one batch.

    A single one goes with those of other calls: with those of the same turn of the event loop,
    and while a batch is under way, with those of the next `embedding.window_s`.
    """

    def __init__(
        self,
        embedder: Embedder,
        guard: Guard,
        settings: RetrievalSettings,
        observer: SearchObserver,
    ) -> None:
        self._embedder = embedder
        self._guard = guard
        self._cache = Cache[tuple[str, str], QueryVector](
            "query_embeddings", settings.cache.query_embeddings, observer
        )
        self._batcher = Batcher[str, QueryVector](
            self._embed, settings.embedding.batch, settings.embedding.window_s
        )

    async def vectors(
        self, texts: Sequence[str], until: float, probe: bool = False
    ) -> list[QueryVector]:
        """In the order of `texts`; a `probe` remembers nothing. Raises as `Guard.call` does."""
        if probe:
            return list(await self._guard.probe(partial(self._embed, texts), until))
        model = self._embedder.contract.model
        known = {text: self._cache.get((model, text)) for text in texts}
        absent = [text for text, vector in known.items() if vector is None]
        if absent:
            fresh = await self._guard.call(partial(self._fresh, absent), until)
            for text, made in zip(absent, fresh, strict=True):
                known[text] = made
                self._cache.put((model, text), made)
        return [vector for text in texts if (vector := known[text]) is not None]

    async def _fresh(self, texts: Sequence[str]) -> Sequence[QueryVector]:
        if len(texts) == 1:
            return [await self._batcher.ask(texts[0])]
        return await self._embed(texts)

    async def _embed(self, texts: Sequence[str]) -> list[QueryVector]:
        return [array("f", vector) for vector in await self._embedder.embed_queries(texts)]
