"""Makes again what a server has lost of a collection: its index in Elasticsearch, or its collection
in Qdrant (an operator's DELETE, a fresh volume).

Vectors are lost for good and are embedded again from BM25's texts: the collection is made here,
empty, and the writer fills it. BM25's index is filled here, since beside every vector stands its
passage: under a name of its own, which becomes the collection's only once every passage is in, so
that a kill leaves it lost and never half there. Where both sides are lost nothing is left to
restore; both are made, empty, and documents have to be ingested again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import anyio
import anyio.to_thread

from service.core.errors import StoreLost
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.manifest import EMPTY_HASH
from service.retrieval.ingest.documents import Record
from service.retrieval.stores.base import LexicalStore, VectorStore
from service.retrieval.stores.points import record_of

PAGE: Final = 2_000  # passages written at once


@dataclass(frozen=True, slots=True)
class Held:
    """Passages in each store; None where its server has lost the collection."""

    bm25: int | None
    dense: int | None


async def held(collection: Collection) -> Held:
    """Raises RevelatorError where a store is out."""
    return Held(await _count(collection.bm25), await _count(collection.dense))


async def restore(collection: Collection, backends: Backends, found: Held) -> int:
    """Make again what `found` says is lost, for the collection's one writer; the number of
    passages that BM25 got back. The dense side stays empty."""
    manifest, restored = collection.manifest, 0
    if found.dense is None:
        await anyio.to_thread.run_sync(backends.make_dense, manifest)
    if found.bm25 is None and found.dense is None:
        await anyio.to_thread.run_sync(backends.make_bm25, manifest)
        empty = {"documents": 0, "passages": 0, "content_hash": EMPTY_HASH, "state": "building"}
        await collection.save(manifest.model_copy(update=empty))
    elif found.bm25 is None:
        restored = await _refill(collection, backends)
    if None in {found.bm25, found.dense}:
        await backends.publish(collection.manifest)
    return restored


async def _refill(collection: Collection, backends: Backends) -> int:
    manifest = collection.manifest
    new = await anyio.to_thread.run_sync(backends.begin_bm25, manifest)
    count = 0
    records = _records(collection.dense)
    while page := await anyio.to_thread.run_sync(lambda: list(islice(records, PAGE))):
        await anyio.to_thread.run_sync(new.replace, [], page)
        count += len(page)
    await anyio.to_thread.run_sync(new.tidy)
    await backends.finish_bm25(manifest)
    return count


def _records(dense: VectorStore) -> Iterator[Record]:
    """Every passage that stands beside a vector. Blocking."""
    parts: dict[str, int] = {}  # of documents that have several
    for page in dense.hash_pages():
        for passage_id in page:
            document_id, _, number = passage_id.rpartition("#")
            if document_id and number.isdigit():
                parts[document_id] = max(parts.get(document_id, 0), int(number))
    for payloads in dense.payload_pages():
        for payload in payloads:
            yield record_of(payload, parts.get(payload["document_id"], 1))


async def _count(store: LexicalStore | VectorStore) -> int | None:
    try:
        return await anyio.to_thread.run_sync(store.count_passages)
    except StoreLost:
        return None


def names_of_lost(collection: Collection, found: Held) -> list[str]:
    """The backends that have lost the collection."""
    sides = ((collection.bm25.backend, found.bm25), (collection.dense.backend, found.dense))
    return [backend for backend, count in sides if count is None]
