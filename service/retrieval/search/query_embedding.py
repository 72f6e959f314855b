"""Vectors of queries: cached, and computed in batches for concurrent questions."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from service.retrieval.embedding import Embedder
from service.retrieval.search.guard import Guard
from service.retrieval.search.observer import SearchObserver
from service.retrieval.stores.batcher import Batcher

REMEMBERED: Final = 1000  # queries
BATCH: Final = 32
WINDOW_S: Final = 0.002  # seconds that a query waits for others while the embedder is busy

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
QueryVector = Sequence[float]  # stored as 32-bit floats, an eighth of a list's memory


class Cache(Generic[Key, Value]):
    """A cache of at most `entries`, which evicts the least recently used.

    Keys contain everything that a value depends on, so entries never become stale.
    """

    def __init__(self, entries: int, observer: SearchObserver) -> None:
        self._entries = entries
        self._observer = observer
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        self._observer.cache(found is not None)
        return found

    def put(self, key: Key, value: Value) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)


class QueryEmbedding:
    """Embeds queries in batches: those of one turn of the event loop, and while a batch is being
    embedded, those of the next WINDOW_S."""

    def __init__(
        self,
        embedder: Embedder,
        guard: Guard,
        observer: SearchObserver,
    ) -> None:
        self._embedder = embedder
        self._guard = guard
        self._cache = Cache[tuple[str, str], QueryVector](REMEMBERED, observer)
        self._batcher = Batcher[str, QueryVector](self._embed, BATCH, WINDOW_S)

    async def vector(self, text: str, until: float, probe: bool = False) -> QueryVector:
        """Return the vector of a query. A `probe` caches nothing. Raises as `Guard.call` does."""
        if probe:
            return (await self._guard.probe(partial(self._embed, [text]), until))[0]
        key = self._embedder.contract.model, text
        known = self._cache.get(key)
        if known is None:
            known = await self._guard.call(partial(self._batcher.ask, text), until)
            self._cache.put(key, known)
        return known

    async def _embed(self, texts: Sequence[str]) -> list[QueryVector]:
        return [array("f", vector) for vector in await self._embedder.embed_queries(texts)]
