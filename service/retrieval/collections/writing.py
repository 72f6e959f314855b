"""How a collection comes to its one writer: with both stores there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.retrieval.collections.backends import Backends
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.restore import held, names_of_lost, restore
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.embedding import Embedder


@asynccontextmanager
async def writing(
    collection: Collection, backends: Backends, embedder: Embedder
) -> AsyncIterator[CollectionWriter]:
    """A writer of a collection that nobody else may write (`Shelf.writer_of`). What a server has
    lost of it is made again first; what vectors that leaves missing, the writer's end embeds."""
    found, restored = await held(collection), 0
    if names_of_lost(collection, found):
        restored = await restore(collection, backends, found)
        found = await held(collection)
    passages, vectors = found.bm25 or 0, found.dense or 0
    async with CollectionWriter(
        collection,
        embedder,
        lacking=vectors < passages,
        surplus=vectors > passages,
        restored=restored,
    ) as writer:
        yield writer
