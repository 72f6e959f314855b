"""Rebuilds the part of a collection that a server has lost, and embeds a collection again.

A side is lost if a server has lost it, or if files of an embedded store are damaged or missing.
A server can lose an index of Elasticsearch or a collection of Qdrant (an operator's DELETE, a fresh
volume). Lost vectors are embedded again from the texts in the BM25 store: the Qdrant collection is
created here, empty, and the writer fills it. The BM25 index is filled here, because every vector is
stored with its passage. The manifest says so before (`restoring`), so that after a kill the index
counts as lost, and never as an authority that is incomplete. If both sides are lost, both are
created empty, and the documents have to be ingested again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from service.core.errors import RevelatorError, StoreError, StoreLost
from service.core.progress import Follow, unseen
from service.retrieval.collections.backends import Backends, being_restored, damaged
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.manifest import EMPTY_HASH
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.documents import PassageRecord
from service.retrieval.embedding import Embedder
from service.retrieval.stores.base import LexicalStore, VectorStore
from service.retrieval.stores.digests import unseal
from service.retrieval.stores.records import record_of

PAGE: Final = 1_000  # passages read and written at once


@dataclass(frozen=True, slots=True)
class PassageCounts:
    """The number of passages in each store; None if its server has lost the collection."""

    bm25: int | None
    dense: int | None

    def lost(self, collection: Collection) -> list[str]:
        """Return the names of the backends that have lost the collection."""
        sides = ((collection.bm25, self.bm25), (collection.dense, self.dense))
        return [store.backend for store, count in sides if count is None]


async def count_passages(collection: Collection) -> PassageCounts:
    """Count the passages in both stores; one with damaged files is lost. Raises RevelatorError if a
    store is unavailable, or if both have damaged files."""
    spoilt = await anyio.to_thread.run_sync(collection.damaged)
    if len(sides := {name.partition("/")[0] for name in spoilt}) == 2 and collection.folder:
        raise StoreError(
            f"{damaged(collection.folder, collection.manifest.name, spoilt)}; delete the "
            "collection (revelator collections delete NAME) and ingest it again"
        )
    return PassageCounts(
        None if "bm25" in sides else await _count(collection.bm25),
        None if "dense" in sides else await _count(collection.dense),
    )


@asynccontextmanager
async def open_writer(
    collection: Collection,
    backends: Backends,
    embedder: Embedder,
    follow: Follow = unseen,
    *,
    more: bool = False,
) -> AsyncIterator[CollectionWriter]:
    """Open the writer of a collection that has no other writer (`Generations.writer_of`). With
    `more`, its end leaves the collection `open`.

    Lost stores are rebuilt first. Vectors that are missing afterwards are embedded at the end of
    the writer.
    """
    counts, restored = await count_passages(collection), 0
    if counts.lost(collection):
        restored = await rebuild(collection, backends, counts, follow)
        counts = await count_passages(collection)
    passages, vectors = counts.bm25 or 0, counts.dense or 0
    async with CollectionWriter(
        collection,
        embedder,
        lacking=vectors < passages,
        surplus=vectors > passages,
        restored=restored,
        follow=follow,
        more=more,
    ) as writer:
        yield writer


async def rebuild(
    collection: Collection, backends: Backends, counts: PassageCounts, follow: Follow = unseen
) -> int:
    """Rebuild the stores that are lost according to `counts`, as the collection's only writer.
    Returns the number of passages restored to the BM25 store. The dense store stays empty.
    """
    manifest, restored = collection.manifest, 0
    folder = collection.folder or Path()
    if counts.lost(collection):
        await collection.intend(manifest.rebuilding(restoring=counts.bm25 is None))
        if collection.folder is not None:
            await anyio.to_thread.run_sync(unseal, folder)
    if counts.dense is None:
        await anyio.to_thread.run_sync(_let_go, collection.dense)
        collection.dense = await anyio.to_thread.run_sync(
            lambda: backends.dense.create(folder, manifest, replace=True)
        )
    if counts.bm25 is None:
        await anyio.to_thread.run_sync(_let_go, collection.bm25)
    if counts.bm25 is None and counts.dense is None:
        collection.bm25 = await anyio.to_thread.run_sync(
            lambda: backends.bm25.create(folder, manifest, replace=True)
        )
        empty = {"documents": 0, "passages": 0, "content_hash": EMPTY_HASH, "state": "building"}
        await collection.save(manifest.model_copy(update=empty))
    elif counts.bm25 is None:
        restored = await _refill(collection, backends, follow)
    if counts.lost(collection):
        await backends.publish(collection.manifest)
    return restored


async def copy_passages(
    old: Collection, writer: CollectionWriter, backends: Backends, follow: Follow = unseen
) -> None:
    """Write every passage of `old`, which has no other writer, into the writer's empty collection,
    where it is embedded with the current settings.

    A lost BM25 index is rebuilt first. Raises StoreError if both stores are lost.
    """
    counts = await count_passages(old)
    if counts == PassageCounts(None, None):
        raise StoreError(
            f"collection {old.manifest.name!r}: both stores have lost its passages; ingest the "
            "documents again"
        )
    if counts.bm25 is None:
        await rebuild(old, backends, counts, follow)
    await anyio.to_thread.run_sync(old.bm25.tidy)
    total = await anyio.to_thread.run_sync(old.bm25.count_passages)
    records, done = old.bm25.records(), 0
    while page := await anyio.to_thread.run_sync(lambda: list(islice(records, PAGE))):

        def on_part(share: float, done: int = done, size: int = len(page)) -> None:
            follow("embedding", done + round(share * size), total)

        on_part(0)
        await writer.copy(page, on_part)
        done += len(page)


async def _refill(collection: Collection, backends: Backends, follow: Follow) -> int:
    manifest = collection.manifest
    folder = collection.folder or Path()
    bm25 = await anyio.to_thread.run_sync(
        lambda: backends.bm25.create(folder, manifest, replace=True)
    )
    collection.bm25 = being_restored(backends.bm25.name, manifest.name)
    count = 0
    records = _records(collection.dense)
    while page := await anyio.to_thread.run_sync(lambda: list(islice(records, PAGE))):
        follow("restoring", count, manifest.passages)
        await anyio.to_thread.run_sync(bm25.replace, [], page)
        count += len(page)
    await anyio.to_thread.run_sync(bm25.tidy)
    collection.bm25 = bm25
    await collection.save(manifest.rebuilding(restoring=False))
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
