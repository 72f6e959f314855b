"""Looks at the collections now and then, so that an incomplete one is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread

from service.core.errors import RevelatorError
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.shelf import Shelf
from service.retrieval.collections.upkeep import quick_problem
from service.retrieval.embedding import Embedder, differences

LOOK_S: Final = 5.0  # between two looks, however many ask
MOST_LOOKED: Final = 50  # collections of one look; the next goes on after them
TIMEOUT_S: Final = 0.5  # of one look at servers; the next goes on where it was cut
HERE_S: Final = 4.0  # the same where all is in this process, which cannot be frozen but busy
AT_ONCE: Final = 2  # threads that count; one that a server holds up ends by itself, later


class Watch:
    """Counts only what is open already; of other collections it reads the manifest."""

    def __init__(self, shelf: Shelf, embedder: Embedder, *, embedded: bool = False) -> None:
        """`embedded`: no collection is on a server."""
        self._shelf = shelf
        self._embedder = embedder
        self._embedded = embedded
        self._lock = anyio.Lock()
        self._threads = anyio.CapacityLimiter(AT_ONCE)
        self._until = 0.0
        self._next = 0
        self._found: dict[str, str] = {}

    async def problems(self) -> dict[str, str]:
        """What is amiss, by collection. Takes a look's time at most; never raises."""
        async with self._lock:
            if time.monotonic() >= self._until:
                with anyio.move_on_after(HERE_S if self._embedded else TIMEOUT_S):
                    await self._look()
                self._until = time.monotonic() + LOOK_S
        return dict(self._found)

    async def _look(self) -> None:
        await self._shelf.tend()
        try:
            names = sorted(await self._shelf.names())
        except RevelatorError:
            return  # what is out, the stores' own checks say
        self._found = {name: why for name, why in self._found.items() if name in names}
        start = self._next if self._next < len(names) else 0
        for number, name in enumerate(names[start:][:MOST_LOOKED], start + 1):
            # First: one that hangs does not keep the others from their turn.
            self._next = number if number < len(names) else 0
            problem = await self._problem(name)
            if problem is not None:
                self._found[name] = problem
            else:
                self._found.pop(name, None)

    async def _problem(self, name: str) -> str | None:
        try:
            if self._shelf.lock(name).locked() or await self._shelf.manifests.claimed(name):
                return None  # a writer is at work
            opened = self._shelf.find(name)
            if opened is None:
                manifest = await self._shelf.manifests.read(name)
                return self._of_manifest(manifest) if manifest else None
            return await self._of_opened(await self._shelf.get(name))
        except RevelatorError as error:
            return error.detail

    async def _of_opened(self, collection: Collection) -> str | None:
        """Also tells the collection, so that its answers say `index-incomplete`."""
        manifest = collection.manifest
        passages = await self._count(collection.bm25.count_passages)
        vectors = await self._count(collection.dense.count_passages)
        busy = self._shelf.lock(manifest.name).locked()
        if busy or collection.manifest is not manifest:
            return None  # somebody wrote meanwhile
        collection.problem = quick_problem(manifest, passages, vectors)
        return collection.problem or self._of_embedding(manifest)

    async def _count(self, count: Callable[[], int]) -> int:
        """A thread that a server holds up is not waited for when the look is over."""
        return await anyio.to_thread.run_sync(count, abandon_on_cancel=True, limiter=self._threads)

    def _of_manifest(self, manifest: Manifest) -> str | None:
        counted = quick_problem(manifest, manifest.passages, manifest.passages)
        return counted or self._of_embedding(manifest)

    def _of_embedding(self, manifest: Manifest) -> str | None:
        apart = differences(manifest.embedding, self._embedder.contract)
        return (
            "dense search is disabled, because the vectors were made with other embedding "
            f"settings: {apart}; embed the passages again with check --collection {manifest.name} "
            "--repair"
            if apart
            else None
        )
