"""Makes the dense store hold what the BM25 store does, and no more.

Only the BM25 store knows which documents there are. What it does not know is removed, what it knows
and has no vector is embedded. Each step is whole by itself: a mending that was killed is run again
and finds less to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio.to_thread

from service.core.concurrency import closing
from service.core.errors import StoreError
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.comparison import Tally, differences
from service.retrieval.ingest.documents import Record


@dataclass(frozen=True, slots=True)
class Mended:
    """Passages that got a vector, vectors and passages that were removed; what there is now."""

    embedded: int
    vectors_removed: int
    passages_removed: int
    tally: Tally


async def mend(
    collection: Collection, embed: Callable[[Sequence[Record]], Awaitable[None]]
) -> Mended:
    """For the collection's one writer. Raises StoreError where the BM25 store has lost everything:
    to go by it would be to delete the rest."""
    bm25, dense = collection.bm25, collection.dense
    before = await anyio.to_thread.run_sync(bm25.count_passages)
    if not before and collection.manifest.passages:
        raise StoreError(
            f"collection {collection.manifest.name!r}: the BM25 store should have "
            f"{collection.manifest.passages:,} passages and has none; ingest the documents again, "
            "which reuses the vectors that still exist"
        )
    await anyio.to_thread.run_sync(bm25.tidy)
    after = await anyio.to_thread.run_sync(bm25.count_passages)
    tally, embedded, removed = Tally(), 0, 0
    async with closing(differences(collection, tally)) as found:
        async for difference in found:
            if difference.kind in {"lacking", "outdated"}:
                await embed(difference.records)
                embedded += len(difference.records)
            elif difference.kind == "surplus":
                await anyio.to_thread.run_sync(dense.delete, difference.ids)
                removed += len(difference.ids)
    await anyio.to_thread.run_sync(dense.flush)
    return Mended(embedded, removed, max(0, before - after), tally)
