"""Embeds a collection again, from BM25's texts, as the settings say now.

The vectors are made beside the old ones, in the collection's next generation, so that a kill leaves
the old one whole, and questions go on in it until the new one takes its place.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import anyio.to_thread

from service.core.errors import StoreError
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.restore import Held, held, restore
from service.retrieval.collections.writer import CollectionWriter

PAGE: Final = 1_000  # passages read and written together


async def copy_passages(old: Collection, writer: CollectionWriter, backends: Backends) -> None:
    """Every passage of `old`, which nobody else may write, into the writer's empty collection.
    What a server lost of its BM25 side is made again first. Raises StoreError where both are lost.
    """
    found = await held(old)
    if found == Held(None, None):
        raise StoreError(
            f"collection {old.manifest.name!r}: both stores have lost its passages; ingest the "
            "documents again"
        )
    if found.bm25 is None:
        await restore(old, backends, found)
    await anyio.to_thread.run_sync(old.bm25.tidy)
    records = old.bm25.records()
    while page := await anyio.to_thread.run_sync(lambda: list(islice(records, PAGE))):
        await writer.copy(page)
