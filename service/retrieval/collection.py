"""One collection: its folder, its manifest, its two stores."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from service.errors import NotFound
from service.retrieval.backends import Backends
from service.retrieval.base import OpenCollection
from service.retrieval.manifest import Manifest, read_manifest, write_manifest
from service.retrieval.stores import LexicalStore, VectorStore

EMBEDDED = ("tantivy", "qdrant_edge")

_versions = itertools.count()  # of all collections, so that one made anew has none of the old


class Collection:
    """`<name>/` with manifest.json and, where they are embedded, bm25/ (tantivy) and dense/
    (qdrant-edge).

    The BM25 store is the authority: a document is in when its passages are there. Whoever writes
    holds `write_lock`; searches need no lock, only a loan, which keeps the stores open.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, bm25: LexicalStore, dense: VectorStore
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.bm25 = bm25
        self.dense = dense
        self.write_lock = anyio.Lock()
        self._loans = 0
        self._returned = anyio.Event()
        self._closed = False
        self._version = self._next_version()

    @classmethod
    def open(
        cls, folder: Path, manifest: Manifest | None = None, backends: Backends | None = None
    ) -> Self:
        """Blocking. With a manifest it is made; without, it must exist."""
        backends = backends or Backends()
        if manifest is None:
            stored = read_manifest(folder)
            return cls(folder, stored, *backends.open(folder, stored))
        fresh = manifest.model_copy(update={"stores": backends.names})
        folder.mkdir(parents=True, exist_ok=True)
        collection = cls(folder, fresh, *backends.create(folder, fresh))
        write_manifest(folder, fresh)
        return collection

    async def save(self, manifest: Manifest) -> None:
        """Write the manifest; from then on it is this collection's."""
        await anyio.to_thread.run_sync(write_manifest, self.folder, manifest)
        self.manifest = manifest
        self._version = self._next_version()

    def check_open(self) -> None:
        """Raises NotFound: it was deleted while someone waited for it."""
        if self._closed:
            raise NotFound(f"collection {self.manifest.name!r} has just been deleted")

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[OpenCollection]:
        """The stores for searching; `close` waits until every loan is back."""
        self.check_open()
        self._loans += 1
        try:
            yield OpenCollection(
                bm25=self.bm25,
                dense=self.dense,
                embedding=self.manifest.embedding,
                incomplete=self.manifest.state == "building",
                version=self._version,
            )
        finally:
            self._loans -= 1
            self._returned.set()

    def _next_version(self) -> int | None:
        """Every manifest that is written gets one, and one is written before the first change and
        after the last. What servers hold may be changed by another process."""
        return next(_versions) if self.manifest.stores == EMBEDDED else None

    async def close(self) -> None:
        """Flush and close both stores once nobody writes or searches. Twice is fine."""
        async with self.write_lock:
            if self._closed:
                return
            self._closed = True
            while self._loans:
                self._returned = anyio.Event()
                await self._returned.wait()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        try:
            self.bm25.close()
        finally:
            self.dense.close()
