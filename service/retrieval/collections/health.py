"""Whether collections are complete, for readiness: counted every few seconds at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread

from service.core.errors import RevelatorError
from service.retrieval.collections.collection import Collection
from service.retrieval.collections.lifecycle import LifeCycle
from service.retrieval.collections.manifest import Manifest
from service.retrieval.embedding import Embedder, differences

INTERVAL_S: Final = 5.0  # seconds between two rounds, however many callers ask
MOST_COLLECTIONS: Final = 50  # collections of one round; the next round continues after them
TIMEOUT_S: Final = 0.5  # seconds of one round at servers; the next one continues where it ended
# seconds without servers: this process cannot hang, but it may be busy
EMBEDDED_TIMEOUT_S: Final = 4.0
AT_ONCE: Final = 2  # threads that count; one that waits for a server ends by itself later


class CollectionHealth:
    """Counts the passages of open collections; of the others it reads only the manifest."""

    def __init__(self, life: LifeCycle, embedder: Embedder, *, embedded: bool = False) -> None:
        """Set `embedded` if no collection is on a server."""
        self._life = life
        self._embedder = embedder
        self._embedded = embedded
        self._lock = anyio.Lock()
        self._threads = anyio.CapacityLimiter(AT_ONCE)
        self._until = 0.0
        self._next = 0
        self._found: dict[str, str] = {}

    async def problems(self) -> dict[str, str]:
        """Return what is wrong, by collection. Takes one round at most; never raises."""
        async with self._lock:
            if time.monotonic() >= self._until:
                with anyio.move_on_after(EMBEDDED_TIMEOUT_S if self._embedded else TIMEOUT_S):
                    await self._inspect()
                self._until = time.monotonic() + INTERVAL_S
        return dict(self._found)

    async def _inspect(self) -> None:
        await self._life.clean()
        try:
            names = sorted(await self._life.names())
        except RevelatorError:
            return  # the checks of the stores report it
        self._found = {name: why for name, why in self._found.items() if name in names}
        start = self._next if self._next < len(names) else 0
        for number, name in enumerate(names[start:][:MOST_COLLECTIONS], start + 1):
            # Set before the loop, so that one that hangs does not take the others' turn.
            self._next = number if number < len(names) else 0
            problem = await self._problem(name)
            if problem is not None:
                self._found[name] = problem
            else:
                self._found.pop(name, None)

    async def _problem(self, name: str) -> str | None:
        try:
            if self._life.lock(name).locked() or await self._life.manifests.claimed(name):
                return None  # a writer is active
            opened = self._life.find(name)
            if opened is None:
                manifest = await self._life.manifests.read(name)
                return self._of_manifest(manifest) if manifest else None
            return await self._of_opened(await self._life.get(name))
        except RevelatorError as error:
            return error.detail

    async def _of_opened(self, collection: Collection) -> str | None:
        """Check an open collection. Also records the problem there, so that answers report
        `index-incomplete`.
        """
        manifest = collection.manifest
        passages = await self._count(collection.bm25.count_passages)
        vectors = await self._count(collection.dense.count_passages)
        busy = self._life.lock(manifest.name).locked()
        if busy or collection.manifest is not manifest:
            return None  # a writer was active meanwhile
        collection.problem = quick_problem(manifest, passages, vectors)
        return collection.problem or self._of_embedding(manifest)

    async def _count(self, count: Callable[[], int]) -> int:
        """Return a count. A thread that waits for a server is abandoned when the round is over."""
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


def quick_problem(manifest: Manifest, passages: int, vectors: int) -> str | None:
    """Return what the counts alone reveal. For readiness, which must be cheap."""
    if manifest.state == "repairing" or manifest.deleting:
        what = "a repair" if manifest.state == "repairing" else "a deletion"
        return f"{what} was interrupted; it is completed when the collection is opened"
    if manifest.state != "complete":
        running = "is running, or " if manifest.state == "open" else ""
        return (
            f"an ingest {running}was interrupted; run it again, or `revelator check --collection "
            f"{manifest.name} --repair`"
        )
    if passages == vectors == manifest.passages:
        return None
    return (
        f"the manifest counts {manifest.passages:,} passages, {manifest.stores[0]} {passages:,} "
        f"and {manifest.stores[1]} {vectors:,}; run `revelator check "
        f"--collection {manifest.name} --repair`"
    )
