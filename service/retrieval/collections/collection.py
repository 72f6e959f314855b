"""One generation of a collection: its manifest and its two stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from service.core.errors import NotFound, RevelatorError, StoreLost
from service.retrieval.base import Hits, OpenCollection
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.manifest import EMBEDDED, Manifest
from service.retrieval.stores.base import LexicalStore, Unopened, VectorStore
from service.retrieval.stores.digests import damage, seal, sealed
from service.retrieval.stores.records import digest


class Collection:
    """An open generation of a collection, from its creation to its end: building, complete,
    replaced by the next one or deleted, closed. The BM25 store is the authority: a document exists
    if its passages are there. One writer at a time holds `LifeCycle.lock`; searches need only a
    loan, which keeps the stores open.

    Its manifest is only in memory until there is `write_manifest`. `problem` is the result of
    `CollectionHealth`; searches then report the collection as incomplete.
    """

    def __init__(
        self,
        manifest: Manifest,
        bm25: LexicalStore,
        dense: VectorStore,
        backends: Backends,
        folder: Path,
        write_manifest: Callable[[Manifest], Awaitable[None]] | None = None,
    ) -> None:
        self.manifest = manifest
        self.bm25 = bm25
        self.dense = dense
        self.backends = backends
        self.folder = folder
        self.write_manifest = write_manifest
        self.problem: str | None = None
        self.killed = manifest.interrupted  # when opened: its writer's process has ended
        self.righting: asyncio.Task[None] | None = None  # completes a write that was interrupted
        self.opened_at = self.read_at = self.used_at = time.monotonic()  # read: its manifest
        self._loans = 0
        self._returned = anyio.Event()
        self._closing = anyio.Lock()
        self._closed = False

    @property
    def lent(self) -> bool:
        return self._loans > 0

    @property
    def incomplete(self) -> bool:
        """Whether the stores may differ, or more documents are to come."""
        manifest = self.manifest
        return manifest.state != "complete" or manifest.interrupted or self.problem is not None

    def halved_for(self) -> float:
        """Return for how many seconds a side has been waiting to be opened, because of a reason
        that may pass; 0 if there is none."""
        waiting = (each for each in (self.bm25, self.dense) if isinstance(each, Unopened))
        passing = any(not isinstance(each.why, StoreLost) for each in waiting)
        return time.monotonic() - self.opened_at if passing else 0.0

    async def save(self, manifest: Manifest) -> None:
        """Write the manifest, and make it the collection's manifest."""
        await self.intend(manifest)
        self.manifest = manifest

    async def intend(self, manifest: Manifest) -> None:
        """Write what the manifest is to be after a kill from now on."""
        if self.write_manifest is not None:
            await self.write_manifest(manifest)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[OpenCollection]:
        """Lend the stores for searching. `close` waits for the end of every loan."""
        if self._closed:
            raise NotFound(f"collection {self.manifest.name!r} was deleted meanwhile")
        self._loans += 1
        try:
            yield OpenCollection(
                bm25=self.bm25,
                dense=self.dense,
                embedding=self.manifest.embedding,
                held=self._held,
                incomplete=self.incomplete,
            )
        finally:
            self._loans -= 1
            self._returned.set()

    def rest(self, *, complete: bool) -> None:
        """Give back what writing needs; where the stores are `complete`, write the digests of their
        files, if there are none. Blocking."""
        self.bm25.release()
        if complete and self.embedded and not sealed(self.folder):
            seal(self.folder)

    def damaged(self) -> list[str]:
        """Return the files that are not as they were written, by path in the folder. Blocking."""
        return [] if self.manifest.interrupted else damage(self.folder)

    @property
    def embedded(self) -> bool:
        """Whether a side is in files of this process."""
        return not set(self.manifest.stores).isdisjoint(EMBEDDED)

    async def _held(self, hits: Hits) -> Hits:
        """Return the hits that BM25 holds with the same text; all if it does not answer, or if the
        stores agree. Asked after the search, because a write may have begun meanwhile."""
        if not self.incomplete:
            return hits
        ids = [hit.passage.passage_id for hit in hits]
        try:
            known = await anyio.to_thread.run_sync(self.bm25.known, ids, abandon_on_cancel=True)
        except RevelatorError:
            return hits
        kept = [hit for hit in hits if (hit.passage.passage_id, digest(hit.passage)) in known]
        return [replace(hit, rank=rank) for rank, hit in enumerate(kept, 1)]

    async def close(self) -> None:
        """Flush and close both stores once no search uses them. May be called several times, also
        at once: every call returns only when they are closed."""
        async with self._closing:
            while self._loans:
                self._returned = anyio.Event()
                await self._returned.wait()
            if self._closed:
                return
            self._closed = True
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        try:
            self.bm25.close()
        finally:
            self.dense.close()
