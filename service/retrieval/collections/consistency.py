"""Compares a collection's two stores passage by passage, repairs differences, and rebuilds a lost
store.

Only the BM25 store knows which documents exist. It is read completely first, and the dense store is
asked for the vectors of each page, so that memory is bounded. Only if that leaves vectors
unexplained, the dense store is read as well, and the BM25 store is asked. A repair removes what the
BM25 store does not contain, and embeds what it contains without a vector. Each step is complete by
itself: a repair that was killed is run again and finds fewer differences.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from anyio import to_thread

from service.core.concurrency import closing
from service.core.errors import RevelatorError, StoreError, StoreLost
from service.core.progress import Follow
from service.retrieval.base import SideName
from service.retrieval.collections.backends import damaged, not_restored
from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import EMPTY, EMPTY_HASH, add_to_hash
from service.retrieval.documents import PassageRecord, record_of
from service.retrieval.stores.base import LexicalStore, Unopened, VectorStore
from service.retrieval.stores.points import HASH_FIELDS

PAGE: Final = 1_000  # documents or vectors looked at at once

# stray: a passage of no document, or of a version that was replaced; lacking: no vector; outdated:
# the vector of another version; surplus: a vector of no passage.
Kind = Literal["stray", "lacking", "outdated", "surplus"]

# Embeds passages, and calls back with the share that is done.
Embed = Callable[[Sequence[PassageRecord], Callable[[float], None]], Awaitable[None]]


# Passages of a page that differ in the same way: their ids, and the records of them in BM25.
Difference = tuple[Kind, Sequence[str], Sequence[PassageRecord]]


@dataclass(slots=True)
class Tally:
    """Counts of the complete documents in the BM25 store, as far as it has been read, and of what
    a repair has changed."""

    read: int = 0  # passages, those of incomplete documents as well
    documents: int = 0
    passages: int = 0
    vectors: int = 0  # counts of these passages, of any version
    content_hash: str = EMPTY_HASH
    fields: set[str] = field(default_factory=set)
    embedded: int = 0
    vectors_removed: int = 0
    passages_removed: int = 0

    def add(self, record: PassageRecord) -> None:
        self.passages += 1
        if record.part == 0:
            self.documents += 1
            pair = (record.document_id, record.content_hash)
            self.content_hash = add_to_hash(self.content_hash, [pair])
            self.fields.update(record.passage.metadata)


async def differences(
    collection: Collection, tally: Tally, read: Callable[[int], None]
) -> AsyncIterator[Difference]:
    """Yield every difference, while there is no other writer, and count in `tally`. `read` is
    called with the number of passages of the BM25 store that have been handled.

    The differences of one page may be repaired before the next page is read.
    """
    read(0)
    bm25, dense = collection.bm25, collection.dense
    async for page in bm25.records():
        newest = await bm25.hashes(sorted({record.document_id for record in page}))
        vectors = await dense.hashes([record.passage.passage_id for record in page])
        for found in await to_thread.run_sync(_compare, page, newest, vectors, tally):
            yield found
        read(tally.read)
    if await dense.count_passages() <= tally.vectors:
        return
    async for payloads in dense.payloads(HASH_FIELDS):
        ids = [payload["passage_id"] for payload in payloads]
        known = dict(await bm25.known(ids))
        if surplus := tuple(passage_id for passage_id in ids if passage_id not in known):
            yield "surplus", surplus, ()


async def repair_differences(collection: Collection, embed: Embed, follow: Follow) -> Tally:
    """Make the dense store hold the passages of the BM25 store and no others, as the collection's
    only writer. Raises StoreError if the BM25 store has lost everything, because following it would
    delete the vectors as well."""
    bm25, dense = collection.bm25, collection.dense
    manifest = collection.manifest
    if manifest.deleting:
        await bm25.replace(manifest.deleting, [])
    before = await bm25.count_passages()
    if not before and manifest.documents > len(manifest.deleting):
        raise StoreError(
            f"collection {manifest.name!r}: the BM25 store has lost its passages; ingest the "
            "documents again, which reuses the vectors that still exist"
        )
    await bm25.tidy()
    after = await bm25.count_passages()
    tally = Tally(passages_removed=max(0, before - after))

    def read(done: int) -> None:
        follow("repairing", done, after)

    def on_part(share: float, size: int) -> None:
        read(tally.read - size + round(share * size))

    async with closing(differences(collection, tally, read)) as found:
        async for kind, ids, records in found:
            if kind in {"lacking", "outdated"}:
                await embed(records, partial(on_part, size=len(records)))
                tally.embedded += len(records)
            elif kind == "surplus":
                await dense.delete(ids)
                tally.vectors_removed += len(ids)
    await dense.flush()
    return tally


def _compare(
    page: Sequence[PassageRecord],
    newest: Mapping[str, str],
    vectors: Mapping[str, str],
    tally: Tally,
) -> list[Difference]:
    """Return what differs in a page of the BM25 store, and count it in `tally`: from the `newest`
    content hash of each document, and the content hash that each vector has."""
    found: dict[Kind, list[PassageRecord]] = {"stray": [], "lacking": [], "outdated": []}
    tally.read += len(page)
    for record in page:
        held = vectors.get(record.passage.passage_id)
        if newest.get(record.document_id) != record.content_hash:
            found["stray"].append(record)
            continue
        tally.add(record)
        tally.vectors += held is not None
        if held != record.content_hash:
            found["lacking" if held is None else "outdated"].append(record)
    return [
        (kind, [record.passage.passage_id for record in records], records)
        for kind, records in found.items()
        if records
    ]


# Rebuilding of a side that is lost: a server has lost it, or files of an embedded store are damaged
# or missing.
#
# A server can lose an index of Elasticsearch or a collection of Qdrant (an operator's DELETE, a
# fresh volume). Lost vectors are embedded again from the texts in the BM25 store: the dense store
# is created here, empty, and the writer fills it. The BM25 store is filled here, because every
# vector is stored with its passage. The manifest says so before (`restoring`), so that after a
# kill it counts as lost, and never as an authority that is incomplete. If both sides are lost,
# both are created empty, and the documents have to be ingested again.

Counts = dict[SideName, int | None]  # passages of each side; None where it is lost


async def count_passages(collection: Collection) -> Counts:
    """Count the passages of both sides. Raises RevelatorError if a store is unavailable, or if both
    have damaged files."""
    spoilt = await to_thread.run_sync(collection.damaged)
    sides = {path.relative_to(collection.folder).parts[0] for path in spoilt}
    if len(sides) == 2:
        raise StoreError(
            f"{damaged(collection.manifest.name, spoilt)}; delete the "
            "collection (revelator collections delete NAME) and ingest it again"
        )
    return {
        "bm25": None if "bm25" in sides else await _count(collection.bm25),
        "dense": None if "dense" in sides else await _count(collection.dense),
    }


async def rebuild(collection: Collection, counts: Counts, follow: Follow) -> int:
    """Rebuild the sides that are lost according to `counts`, as the collection's only writer.
    Returns the number of passages restored to the BM25 store. The dense store stays empty.
    """
    lost = {side for side, count in counts.items() if count is None}
    if not lost:
        return 0
    manifest, folder, backends = collection.manifest, collection.folder, collection.backends
    await collection.intend(manifest.rebuilding(restoring="bm25" in lost))
    await collection.unseal()
    if "dense" in lost:
        await let_go(collection.dense)
        collection.dense = await backends.create_dense(folder, manifest)
    restored = 0
    if "bm25" in lost:
        await let_go(collection.bm25)
        bm25 = await backends.create_bm25(folder, manifest)
        if "dense" in lost:
            manifest = manifest.having(**EMPTY, state="building")
        else:
            collection.bm25 = Unopened(backends.names[0], not_restored(manifest))
            restored = await _refill(collection, bm25, follow)
            manifest = manifest.rebuilding(restoring=False)
        collection.bm25 = bm25
        await collection.save(manifest)
    await backends.publish(collection.manifest)
    return restored


async def _refill(collection: Collection, bm25: LexicalStore, follow: Follow) -> int:
    count = 0
    async for payloads in collection.dense.payloads():
        follow("restoring", count, collection.manifest.passages)
        page = await to_thread.run_sync(
            lambda found: [record_of(payload) for payload in found], payloads
        )
        await bm25.replace([], page)
        count += len(page)
    await bm25.tidy()
    return count


async def let_go(store: LexicalStore | VectorStore) -> None:
    """Close a store that is replaced, whatever state it is in."""
    with contextlib.suppress(RevelatorError):
        await store.close()


async def _count(store: LexicalStore | VectorStore) -> int | None:
    try:
        return await store.count_passages()
    except StoreLost:
        return None
