"""Rebuilds the side of a collection that is lost.

A side is lost if a server has lost it, or if files of an embedded store are damaged or missing.
A server can lose an index of Elasticsearch or a collection of Qdrant (an operator's DELETE, a fresh
volume). Lost vectors are embedded again from the texts in the BM25 store: the dense store is
created here, empty, and the writer fills it. The BM25 store is filled here, because every vector is
stored with its passage. The manifest says so before (`restoring`), so that after a kill it counts
as lost, and never as an authority that is incomplete. If both sides are lost, both are created
empty, and the documents have to be ingested again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

import anyio.to_thread

from service.core.errors import RevelatorError, StoreError, StoreLost
from service.core.progress import Follow, unseen
from service.retrieval.base import SideName
from service.retrieval.collections.backends import damaged, not_restored
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.manifest import EMPTY_HASH
from service.retrieval.documents import PassageRecord
from service.retrieval.stores.base import LexicalStore, Unopened, VectorStore
from service.retrieval.stores.digests import unseal
from service.retrieval.stores.records import record_of

PAGE: Final = 1_000  # passages read and written at once

Counts = dict[SideName, int | None]  # passages of each side; None where it is lost


async def count_passages(collection: Collection) -> Counts:
    """Count the passages of both sides. Raises RevelatorError if a store is unavailable, or if both
    have damaged files."""
    spoilt = await anyio.to_thread.run_sync(collection.damaged)
    if len(sides := {name.partition("/")[0] for name in spoilt}) == 2:
        raise StoreError(
            f"{damaged(collection.folder, collection.manifest.name, spoilt)}; delete the "
            "collection (revelator collections delete NAME) and ingest it again"
        )
    return {
        "bm25": None if "bm25" in sides else await _count(collection.bm25),
        "dense": None if "dense" in sides else await _count(collection.dense),
    }


async def rebuild(collection: Collection, counts: Counts, follow: Follow = unseen) -> int:
    """Rebuild the sides that are lost according to `counts`, as the collection's only writer.
    Returns the number of passages restored to the BM25 store. The dense store stays empty.
    """
    lost = {side for side, count in counts.items() if count is None}
    if not lost:
        return 0
    manifest, folder, backends = collection.manifest, collection.folder, collection.backends
    await collection.intend(manifest.rebuilding(restoring="bm25" in lost))
    await anyio.to_thread.run_sync(unseal, folder)
    if "dense" in lost:
        await anyio.to_thread.run_sync(_let_go, collection.dense)
        collection.dense = await anyio.to_thread.run_sync(backends.create_dense, folder, manifest)
    restored = 0
    if "bm25" in lost:
        await anyio.to_thread.run_sync(_let_go, collection.bm25)
        bm25 = await anyio.to_thread.run_sync(backends.create_bm25, folder, manifest)
        if "dense" in lost:
            empty = {"documents": 0, "passages": 0, "content_hash": EMPTY_HASH, "state": "building"}
            manifest = manifest.model_copy(update=empty)
        else:
            collection.bm25 = Unopened(backends.names[0], not_restored(manifest))
            restored = await _refill(collection, bm25, follow)
            manifest = manifest.rebuilding(restoring=False)
        collection.bm25 = bm25
        await collection.save(manifest)
    await backends.publish(collection.manifest)
    return restored


async def _refill(collection: Collection, bm25: LexicalStore, follow: Follow) -> int:
    count, records = 0, _records(collection.dense)
    while page := await anyio.to_thread.run_sync(lambda: list(islice(records, PAGE))):
        follow("restoring", count, collection.manifest.passages)
        await anyio.to_thread.run_sync(bm25.replace, [], page)
        count += len(page)
    await anyio.to_thread.run_sync(bm25.tidy)
    return count


def _records(dense: VectorStore) -> Iterator[PassageRecord]:
    """Yield every passage that is stored with a vector. Blocking."""
    parts: dict[str, int] = {}  # of documents that have several
    for page in dense.hash_pages():
        for passage_id in page:
            document_id, _, number = passage_id.rpartition("#")
            if document_id and number.isdecimal():
                parts[document_id] = max(parts.get(document_id, 0), int(number))
    for payloads in dense.payload_pages():
        for payload in payloads:
            yield record_of(payload, parts.get(payload["document_id"], 1))


def _let_go(store: LexicalStore | VectorStore) -> None:
    """Close a store that is replaced, whatever state it is in."""
    with contextlib.suppress(RevelatorError):
        store.close()


async def _count(store: LexicalStore | VectorStore) -> int | None:
    try:
        return await anyio.to_thread.run_sync(store.count_passages)
    except StoreLost:
        return None
