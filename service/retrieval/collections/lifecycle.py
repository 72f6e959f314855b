"""The life cycle of collections: building, complete, replaced, closed; one of each name is current.

A replacement has this order: (1) the manifest records the next generation as a leftover; (2) it is
built beside the current one; (3) the manifest names it as the collection, and the old one as a
leftover, in one write for both stores; (4) the public aliases follow; (5) the old one is deleted
once its questions have ended, (6) and is removed from the leftovers. A question keeps the
generation that its first search found; new questions get the new generation as soon as (3) is
written. After a kill before (3), the old generation is still served, and the next process or writer
deletes the incomplete one; after a kill later, the new one is served and the old one is deleted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

import anyio
import structlog
from anyio import to_thread

from service.core.domain import ScoredPassage
from service.core.errors import InvalidRequest, NotFound, RevelatorError, StoreError, StoreLost
from service.core.files import discard
from service.retrieval.base import SIDES
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.manifest import EMBEDDED, Manifest
from service.retrieval.documents import digest
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores.base import LexicalStore, Unopened, VectorStore, to_its_end
from service.retrieval.stores.digests import damage, seal, sealed, unseal

REFRESH_S: Final = 0.15  # seconds that a question waits at most for what other gateways wrote
FRESH_S: Final = 2.0  # seconds until data that other gateways may write is read again
# A replaced generation is kept as long as a question of another gateway may still use it: the
# longest time limit of a question, and the time until that gateway has noticed the new generation.
RETIRE_S: Final = 330.0

MOST_OPEN: Final = 32  # collections; each has a thread and 10 MB of memory
IDLE_S: Final = 600.0  # seconds until a collection that is not used is closed

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class LifeCycle:
    """Opens, creates, replaces and deletes collections.

    `root` has a folder for each collection, and in it one for each generation.
    """

    def __init__(self, root: Path, backends: Backends) -> None:
        self.manifests = backends.manifests(root)
        self._root = root
        self._backends = backends
        self._names: set[str] | None = None
        self._names_read = 0.0
        self._current: dict[str, Collection] = {}
        self._ended: set[Collection] = set()  # replaced or deleted, while questions use them
        # A lock that is free is taken at once: nobody borrows a collection that is about to close.
        self._locks = defaultdict[str, anyio.Lock](partial(anyio.Lock, fast_acquire=True))

    async def names(self) -> set[str]:
        """Return the names of all collections; the last known ones if they cannot be read soon."""
        if self._names is None:
            self._names = await self.manifests.names()
            self._names_read = time.monotonic()
        elif self._is_old(self._names_read):
            self._names_read = time.monotonic()  # first, so that others do not wait too
            self._names = await self._read_soon(self.manifests.names, self._names)
        return self._names

    def find(self, name: str) -> Collection | None:
        """Return the collection of this name if it is open."""
        return self._current.get(name)

    def lock(self, name: str) -> anyio.Lock:
        """Return the lock for opening, creating, writing and deleting. Searches do not need it."""
        return self._locks[name]

    async def get(self, name: str) -> Collection:
        """Return the open collection. Raises NotFound and StoreError."""
        found = self.find(name)
        if found is not None and self._may_close(found) and found.halved_for() > FRESH_S:
            async with self.lock(name):
                await self.unload(found)
            found = None
        if found is None:
            async with self.lock(name):
                return self.find(name) or await self.load(name)
        found.used_at = time.monotonic()
        return await self._refreshed(found) if self._is_old(found.read_at) else found

    async def load(self, name: str) -> Collection:
        """Open the generation that the manifest names, with the lock held. Raises NotFound and
        StoreError."""
        manifest = await self.manifests.read(name)
        if manifest is None:
            raise NotFound(f"there is no collection {name[:80]!r}")
        collection = await self._open(manifest)
        if not self.manifests.shared:  # nobody else can be building one
            await self._sweep(collection)
        return collection

    async def create_new(self, manifest: Manifest) -> Collection | None:
        """Create a collection; None if it exists, also if another gateway has just created it."""
        name = manifest.name
        async with self.lock(name), self.manifests.claim(name):
            if await self.manifests.read(name) is not None:
                return None
            return await self.create(manifest)

    async def create(self, manifest: Manifest, *, replace: bool = False) -> Collection:
        """Create a collection, empty, with the lock held."""
        await to_thread.run_sync(discard, self._root / manifest.name)
        collection = await self._build(manifest, replace=replace)
        await self._publish(collection, collection.manifest)
        (await self.names()).add(manifest.name)
        return collection

    async def _build(self, manifest: Manifest, *, replace: bool = True) -> Collection:
        """Create the empty stores of a generation; its manifest is in memory only."""
        await self._close_idle()
        fresh = manifest.having(stores=self._backends.names)
        folder = self._folder(fresh)
        stores = await self._backends.create(folder, fresh, replace=replace)
        return Collection(fresh, *stores, self._backends, folder)

    @asynccontextmanager
    async def writer_of(self, name: str) -> AsyncIterator[Collection]:
        """Hold the collection as its only writer, in this process and among gateways, with the
        newest manifest. Raises NotFound and StoreError.
        """
        await self.get(name)
        async with self.lock(name), self.manifests.claim(name):
            collection = self.find(name)
            if self.manifests.shared:
                manifest = await self.manifests.read(name)
                if collection is None or manifest is None:
                    raise NotFound(f"collection {name!r} was deleted meanwhile")
                collection = await self._follow(collection, manifest)
            elif collection is None:
                collection = await self.load(name)  # it was closed as idle, or deleted
            yield collection
            await self._sweep(self._current.get(name, collection))

    @asynccontextmanager
    async def successor_of(
        self, name: str, embedding: EmbeddingContract
    ) -> AsyncIterator[tuple[Collection, Collection]]:
        """Hold the collection and its next generation, empty, to be filled by its only writer.

        At the end it becomes the collection, and the old one is deleted once its questions have
        ended. After an exception within the context the old one stays and the new one is deleted.
        """
        async with self.writer_of(name) as old:
            number = 1 + max(old.manifest.generation, *old.manifest.leftovers, 0)
            await old.save(old.manifest.leaving(number, time.time()))
            try:
                new = await self._build(old.manifest.succeeded(number, embedding))
                try:
                    yield old, new
                    _check_complete(new)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await new.close()
                    raise
            except BaseException:
                with anyio.CancelScope(shield=True), _logged(name):
                    await self._delete(old, (number,))
                raise
            try:
                await to_its_end(self._switch(old, new))
            finally:
                # It is not deleted: a manifest may name it, and one that none names is swept later.
                if self.find(name) is not new:
                    await new.close()
        await self.unload(old)
        await self._tidy(name)

    async def _switch(self, old: Collection, new: Collection) -> None:
        """Make `new` the collection. For the writer of `old`."""
        known = old.manifest.leaving(old.manifest.generation, time.time())
        left = known.without((new.manifest.generation,)).leftovers
        await self._publish(new, new.manifest.having(leftovers=left))

    async def drop(self, name: str) -> None:
        """Delete a collection, after its writer and the questions that use it have ended. Other
        questions do not find it any more.

        Servers come first: if one is unavailable, the collection is still known.
        """
        names = await self.names()
        self._end(name)
        names.discard(name)
        try:
            async with self.lock(name):
                self._end(name)  # what a writer has published meanwhile
                for old in list(self._ended):
                    if old.manifest.name == name:
                        await self.unload(old)
                await self.drop_stored(name)
        except BaseException:
            names.add(name)
            raise

    def _end(self, name: str) -> None:
        """Let no further question find the current generation, if it is open."""
        if collection := self._current.pop(name, None):
            self._ended.add(collection)

    async def unload(self, collection: Collection) -> None:
        """Close a generation after the questions that use it. The current one is opened again at
        its next use; its lock is held. What fails is logged: nothing that was written depends on
        it."""
        name = collection.manifest.name
        if self.find(name) is collection:
            self._end(name)  # closed later, if this is cancelled while it waits
        try:
            await collection.close()
        except RevelatorError as error:
            _log.warning("stores not closed", collection=name, reason=error.detail)
        self._ended.discard(collection)

    async def drop_stored(self, name: str) -> None:
        """Delete the stored data of a collection that is not open, with the lock held."""
        await self._backends.drop(name)
        await self.manifests.forget(name)
        (await self.names()).discard(name)

    async def clean(self) -> None:
        """Close and delete replaced generations that no question uses any more, and close idle
        collections. Never raises."""
        await self._close_idle()
        for old in list(self._ended):
            if self._may_close(old):  # a writer has no loan: it may still use what is deleted
                await self.unload(old)
        for collection in list(self._current.values()):
            name = collection.manifest.name
            if self._overdue(collection) and not self.lock(name).locked():
                await self._tidy(name)

    async def _close_idle(self) -> None:
        """Close the collections that were not used for `IDLE_S`, and the least recently used ones
        beyond `MOST_OPEN`, until their next use."""
        opened = sorted(self._current.values(), key=lambda collection: collection.used_at)
        excess, since = len(opened) - MOST_OPEN, time.monotonic() - IDLE_S
        for number, collection in enumerate(opened):
            if number >= excess and collection.used_at > since:
                return
            if self._may_close(collection):
                async with self.lock(collection.manifest.name):
                    await self.unload(collection)

    def _may_close(self, collection: Collection) -> bool:
        return not (collection.lent or self.lock(collection.manifest.name).locked())

    async def close(self) -> None:
        """Flush and close every store, the last opened first. May be called twice."""
        while self._current:
            *_, collection = self._current.values()
            async with self.lock(collection.manifest.name):
                await self.unload(collection)
        for old in list(self._ended):
            await self.unload(old)

    def _folder(self, manifest: Manifest) -> Path:
        return self._root / manifest.name / str(manifest.generation)

    def _is_old(self, since: float) -> bool:
        """Whether the data must be read again; never if there is no other writer."""
        return self.manifests.shared and time.monotonic() - since > FRESH_S

    async def _open(self, manifest: Manifest) -> Collection:
        """Open a generation and make it the current one of its name."""
        await self._close_idle()
        folder = self._folder(manifest)
        stores = await to_thread.run_sync(self._backends.open, folder, manifest)
        opened = Collection(manifest, *stores, self._backends, folder, self.manifests.write)
        self._end(manifest.name)
        self._current[manifest.name] = opened
        return opened

    async def _publish(self, collection: Collection, manifest: Manifest) -> None:
        collection.write_manifest = self.manifests.write
        await collection.save(manifest)
        self._end(manifest.name)
        self._current[manifest.name] = collection
        await self._point(manifest)

    async def _point(self, manifest: Manifest) -> None:
        """Set the public aliases. If that fails, the next sweep does it."""
        try:
            await self._backends.publish(manifest)
        except RevelatorError as error:
            _log.warning("alias not updated", collection=manifest.name, reason=error.detail)

    async def _read_soon(self, read: Callable[[], Awaitable[T]], known: T) -> T:
        """Return what is read, or `known` if it cannot be read soon."""
        try:
            with anyio.fail_after(REFRESH_S):
                return await read()
        except (TimeoutError, RevelatorError):
            return known

    async def _refreshed(self, found: Collection) -> Collection:
        """Apply what other gateways have written, unless it cannot be read soon."""
        name, found.read_at = found.manifest.name, time.monotonic()  # others do not wait too
        if self.lock(name).locked():
            return found
        known: Manifest | None = found.manifest
        manifest = await self._read_soon(partial(self.manifests.read, name), known)
        if manifest is None:
            self._end(name)
            raise NotFound(f"collection {name!r} was deleted meanwhile")
        if self.lock(name).locked() or self.find(name) is not found:
            return self.find(name) or found
        return await self._follow(found, manifest)

    async def _follow(self, found: Collection, manifest: Manifest) -> Collection:
        """Return the generation that `manifest` names: this one, or another that replaces it."""
        if manifest.generation != found.manifest.generation:
            return await self._open(manifest)
        found.manifest = manifest
        return found

    def _overdue(self, collection: Collection) -> list[int]:
        """Return the leftover generations that may be deleted."""
        manifest, now = collection.manifest, time.time()
        retire_s = RETIRE_S if self.manifests.shared else 0.0
        used = {(old.manifest.name, old.manifest.generation) for old in self._ended}
        return [
            generation
            for generation, since in manifest.leftovers.items()
            if now - since >= retire_s and (manifest.name, generation) not in used
        ]

    async def _sweep(self, collection: Collection) -> None:
        """Delete leftovers, as the collection's writer. What fails is tried again later."""
        if gone := self._overdue(collection):
            with _logged(collection.manifest.name):
                await self._delete(collection, gone)
                await self._point(collection.manifest)

    async def _delete(self, collection: Collection, generations: Sequence[int]) -> None:
        name = collection.manifest.name
        for generation in generations:
            await self._backends.drop(name, generation)
            await to_thread.run_sync(discard, self._root / name / str(generation))
        await collection.save(collection.manifest.without(generations))

    async def _tidy(self, name: str) -> None:
        """Become the collection's writer, which sweeps at its end, unless there is another."""
        with _logged(name):
            if not await self.manifests.claimed(name):
                async with self.writer_of(name):
                    pass


def _check_complete(new: Collection) -> None:
    """Raise InvalidRequest or StoreError if `new` must not replace a collection."""
    unchanged = f"collection {new.manifest.name!r} is unchanged"
    if not new.manifest.documents:
        raise InvalidRequest(f"{unchanged}: no valid document was received")
    if new.manifest.state != "complete":
        raise StoreError(f"{unchanged}: a write was interrupted")


@contextmanager
def _logged(name: str) -> Iterator[None]:
    """Log why a leftover generation of a collection could not be deleted."""
    try:
        yield
    except RevelatorError as error:
        _log.warning("leftover generation not deleted", collection=name, reason=error.detail)


class Collection:
    """An open generation of a collection, from its creation to its end: building, complete,
    replaced by the next one or deleted, closed. The BM25 store is the authority: a document exists
    if its passages are there. One writer at a time holds `LifeCycle.lock`; searches need only a
    loan, which keeps the stores open.

    Its manifest is only in memory until there is `write_manifest`. `differs`: the stores held other
    counts when `Collections.problems` looked; searches then report the collection as incomplete.
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
        self.differs = False
        self.killed = manifest.interrupted  # when opened: its writer's process has ended
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
        return manifest.state != "complete" or manifest.interrupted or self.differs

    def halved_for(self) -> float:
        """Return for how many seconds a side has been waiting to be opened, because of a reason
        that may pass; 0 if there is none."""
        waiting = (store for store in (self.bm25, self.dense) if isinstance(store, Unopened))
        passing = any(not isinstance(store.why, StoreLost) for store in waiting)
        return time.monotonic() - self.opened_at if passing else 0.0

    async def save(self, manifest: Manifest) -> None:
        """Write the manifest, and make it the collection's manifest."""
        await self.intend(manifest)
        self.manifest = manifest
        self.killed &= manifest.interrupted

    async def intend(self, manifest: Manifest) -> None:
        """Write what the manifest is to be after a kill from now on."""
        if self.write_manifest is not None:
            await self.write_manifest(manifest)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Self]:
        """Keep the stores open for searching: `close` waits for the end of every loan."""
        if self._closed:
            raise NotFound(f"collection {self.manifest.name!r} was deleted meanwhile")
        self._loans += 1
        try:
            yield self
        finally:
            self._loans -= 1
            self._returned.set()

    async def rest(self, *, complete: bool) -> None:
        """Give back what writing needs; where the stores are `complete`, write the digests of their
        files, if there are none."""
        await self.bm25.release()
        for side in self.embedded if complete else ():
            if not await to_thread.run_sync(sealed, side):
                await to_thread.run_sync(seal, side)

    def damaged(self) -> list[Path]:
        """Return the files that are not as they were written. Blocking."""
        if self.manifest.interrupted:
            return []
        return [path for side in self.embedded for path in damage(side)]

    @property
    def embedded(self) -> list[Path]:
        """The folders of the sides that are in files of this process."""
        sides = zip(SIDES, self.manifest.stores, strict=True)
        return [self.folder / side for side, backend in sides if backend in EMBEDDED]

    async def unseal(self) -> None:
        """Remove the digests of the files, before they change."""
        for side in self.embedded:
            await to_thread.run_sync(unseal, side)

    async def held(self, hits: Sequence[ScoredPassage]) -> Sequence[ScoredPassage]:
        """Return the hits that BM25 holds with the same text; all if it does not answer, or if the
        stores agree. Asked after the search, because a write may have begun meanwhile."""
        if not self.incomplete:
            return hits
        ids = [hit.passage.passage_id for hit in hits]
        try:
            known = await self.bm25.known(ids)
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
                try:
                    await self.bm25.close()
                finally:
                    await self.dense.close()
