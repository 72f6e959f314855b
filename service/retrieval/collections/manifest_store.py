"""Where manifests are kept. There is one authority, and it is written last.

BM25 in the process: the authority is `<data directory>/collections/<name>/manifest.json`. BM25 in
Elasticsearch: a document of its index `revelator.manifests`, so that a gateway with an empty data
directory finds every collection, and several at once agree. Where vectors are in Qdrant, their
collection there carries a copy in its metadata, which `revelator check` compares. Order of one
change: (1) the stores' contents, (2) the copy in Qdrant, (3) the authority, (4) where that is in
Elasticsearch, the file, from which a restart serves while Elasticsearch is out. What a kill leaves
is an older authority, which says `building`, or an older file, which nobody reads until then.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from service.core.errors import StoreError
from service.core.files import discard, sweep, write_whole
from service.retrieval.collections.manifest import Manifest, parse_manifest

FILE = "manifest.json"


class ManifestStore(Protocol):
    """Raises StoreError for a manifest that cannot be read or written."""

    @property
    def shared(self) -> bool:
        """Whether other processes may write the same collections."""

    async def names(self) -> set[str]:
        """Of every collection."""

    async def read(self, name: str) -> Manifest | None:
        """None where there is none."""

    async def write(self, manifest: Manifest) -> None:
        """All of it or nothing, durably."""

    async def forget(self, name: str) -> None:
        """The manifest goes, and the collection's folder in the data directory with it."""

    def claim(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        """The right to write a collection, among all processes. Waits for another writer, then
        raises StoreError."""

    async def claimed(self, name: str) -> bool:
        """Whether another process writes the collection now."""


class FileManifests:
    """`<root>/<name>/manifest.json`, in a data directory that this process owns."""

    shared = False

    def __init__(self, root: Path) -> None:
        self._root = root

    async def names(self) -> set[str]:
        return await anyio.to_thread.run_sync(self._names)

    async def read(self, name: str) -> Manifest | None:
        return await anyio.to_thread.run_sync(self._read, name)

    async def write(self, manifest: Manifest) -> None:
        path = self._root / manifest.name / FILE
        await anyio.to_thread.run_sync(write_whole, path, manifest.model_dump_json(indent=2))

    async def forget(self, name: str) -> None:
        await anyio.to_thread.run_sync(discard, self._root / name)

    @asynccontextmanager
    async def claim(self, name: str) -> AsyncIterator[None]:
        """The process owns the directory: nobody else can write."""
        yield

    async def claimed(self, name: str) -> bool:
        return False

    def _names(self) -> set[str]:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self._root} cannot be used: {error}") from error
        sweep(self._root)
        return {path.parent.name for path in self._root.glob("*/" + FILE)}

    def _read(self, name: str) -> Manifest | None:
        path = self._root / name / FILE
        try:
            return parse_manifest(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
