"""The collections of a data directory: made, listed, lent, changed, deleted."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from service.errors import InvalidRequest, NotFound, StoreError
from service.retrieval.backends import Backends
from service.retrieval.base import OpenCollection
from service.retrieval.collection import Collection
from service.retrieval.documents import Record
from service.retrieval.embedding import Embedder
from service.retrieval.manifest import FILE, Analysis, Manifest, check_name, read_manifest
from service.retrieval.sample import SAMPLE, Sample
from service.retrieval.writer import CollectionWriter

DEFAULT = "default"
_TRASH = ".deleted-"


class Collections:
    """`<data directory>/collections/<name>/`. The process must own the data directory.

    A collection is opened at its first use. `sample` is shipped: made at its first use, made anew
    when the shipped corpus or the embedding model changes, and not to be written by callers.
    """

    def __init__(
        self,
        data_dir: Path,
        embedder: Embedder,
        sample: Sample | None = None,
        backends: Backends | None = None,
    ) -> None:
        self._root = data_dir / "collections"
        self._embedder = embedder
        self._sample = sample or Sample.shipped()
        self._backends = backends or Backends()
        self._names: set[str] | None = None
        self._shipped: set[str] = set()
        self._open: dict[str, Collection] = {}
        self._lock = anyio.Lock()

    async def names(self) -> list[str]:
        """Every collection, the sample too where its corpus is shipped."""
        if self._names is None:
            async with self._lock:
                await self._known()
        return sorted((self._names or set()) | self._shipped)

    async def resolve(self, name: str | None) -> str:
        if name is not None and name in self._open:
            return name
        return _resolve(name, await self.names())

    async def metadata_fields(self, name: str) -> Sequence[str]:
        return (await self.get(name)).manifest.metadata_fields

    async def manifest(self, name: str) -> Manifest:
        """What the collection is, with its counts of this moment."""
        return (await self.get(name)).manifest

    async def manifests(self) -> list[Manifest]:
        return [await self.manifest(name) for name in await self.names()]

    async def get(self, name: str) -> Collection:
        """The open collection. Raises NotFound, StoreError."""
        if name in self._open:
            return self._open[name]
        async with self._lock:
            if name in self._open:
                return self._open[name]
            _resolve(name, sorted(await self._known() | self._shipped))
            if name == SAMPLE:
                collection = await self._open_sample()
            else:
                collection = await self._reopen(name)
            self._open[name] = collection
            return collection

    @asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[OpenCollection]:
        async with (await self.get(name)).lend() as stores:
            yield stores

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        metadata_fields: Sequence[str] = (),
        analysis: Analysis | None = None,
    ) -> Manifest:
        """Make a collection, or change an existing one's description and add fields.

        Raises InvalidRequest for a bad or the sample's name, and for another analysis of a
        collection that exists.
        """
        self._check_writable(check_name(name))
        async with self._lock:
            if name not in await self._known():
                fresh = Manifest(
                    name=name,
                    description=description or "",
                    analysis=analysis or "english",
                    embedding=self._embedder.contract,
                ).with_fields(metadata_fields)
                return (await self._make(fresh)).manifest
        collection = await self.get(name)
        if analysis not in {None, collection.manifest.analysis}:
            raise InvalidRequest(
                f"collection {name!r} is analysed as {collection.manifest.analysis!r}; delete it "
                "to analyse it in another way"
            )
        async with collection.write_lock:
            changed = collection.manifest.with_fields(metadata_fields)
            if description is not None:
                changed = changed.model_copy(update={"description": description})
            if changed != collection.manifest:
                await collection.save(changed)
        return collection.manifest

    async def delete(self, name: str) -> None:
        """Waits for the searches that run on it. Raises NotFound, InvalidRequest (sample)."""
        self._check_writable(name)
        await self.resolve(name)
        async with self._lock:
            await self._remove(name)

    async def document(self, name: str, document_id: str) -> list[Record]:
        """A document's passages in order. Raises NotFound."""
        collection = await self.get(name)
        async with collection.lend():
            records = await anyio.to_thread.run_sync(collection.bm25.document, document_id)
        if not records:
            raise NotFound(f"collection {name!r} has no document {document_id[:200]!r}")
        return records

    async def delete_document(self, name: str, document_id: str) -> None:
        """Raises NotFound."""
        async with self.writing(name) as writer:
            if not await writer.delete(document_id):
                raise NotFound(f"collection {name!r} has no document {document_id[:200]!r}")

    @asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[CollectionWriter]:
        """The collection's one writer; waits for another to end. Raises NotFound."""
        self._check_writable(name)
        collection = await self.get(name)
        async with CollectionWriter(collection, self._embedder) as writer:
            yield writer

    async def aclose(self) -> None:
        """Flush and close every store, last opened first. Twice is fine."""
        async with self._lock:
            while self._open:
                _, collection = self._open.popitem()
                await collection.close()

    def _check_writable(self, name: str) -> None:
        if name == SAMPLE:
            raise InvalidRequest(
                "collection 'sample' is shipped and cannot be changed; use another name"
            )

    async def _known(self) -> set[str]:
        """Names on disk, read once: the process owns the directory."""
        if self._names is None:
            self._names = await anyio.to_thread.run_sync(self._read_names)
        return self._names

    def _read_names(self) -> set[str]:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self._root} cannot be used: {error}") from error
        for left in self._root.glob(_TRASH + "*"):
            shutil.rmtree(left, ignore_errors=True)
        self._shipped = {SAMPLE} if self._sample.exists else set()
        return {path.parent.name for path in self._root.glob("*/" + FILE)}

    async def _make(self, manifest: Manifest) -> Collection:
        """With the lock held. A folder without a manifest was never finished: it goes."""
        folder = self._root / manifest.name
        await anyio.to_thread.run_sync(shutil.rmtree, folder, True)
        collection = await anyio.to_thread.run_sync(
            Collection.open, folder, manifest, self._backends
        )
        self._open[manifest.name] = collection
        (await self._known()).add(manifest.name)
        return collection

    async def _reopen(self, name: str) -> Collection:
        folder = self._root / name
        return await anyio.to_thread.run_sync(Collection.open, folder, None, self._backends)

    async def _remove(self, name: str) -> None:
        """With the lock held. Servers first: where one is out, the collection is still known.
        The folder is renamed before it goes, so that half a folder is never a collection."""
        collection = self._open.pop(name, None)
        if collection is not None:
            await collection.close()
        await self._backends.drop(name)
        (await self._known()).discard(name)
        await anyio.to_thread.run_sync(_discard, self._root, name)

    async def _open_sample(self) -> Collection:
        """With the lock held: open it, or make it when it is absent, partial or outdated."""
        wanted = await anyio.to_thread.run_sync(self._sample.manifest, self._embedder)
        if SAMPLE in await self._known():
            with contextlib.suppress(StoreError):
                stored = await anyio.to_thread.run_sync(read_manifest, self._root / SAMPLE)
                same = (stored.source, stored.embedding, stored.stores) == (
                    wanted.source, wanted.embedding, self._backends.names,
                )  # fmt: skip
                if same and stored.state == "complete" and stored.passages:
                    return await self._reopen(SAMPLE)
            await self._remove(SAMPLE)
        collection = await self._make(wanted)
        try:
            await self._sample.fill(collection, self._embedder)
        except BaseException:
            self._open.pop(SAMPLE, None)
            with anyio.CancelScope(shield=True):
                await collection.close()
            raise
        return collection


def _resolve(name: str | None, names: Sequence[str]) -> str:
    if name is None:
        name = DEFAULT if DEFAULT in names else SAMPLE
    if name not in names:
        known = ", ".join(names) or "none yet"
        raise NotFound(f"there is no collection {name[:80]!r}; there are: {known}")
    return name


def _discard(root: Path, name: str) -> None:
    trash = root / f"{_TRASH}{name}-{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):
        (root / name).rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def describe(manifest: Manifest) -> dict[str, Any]:
    """What HTTP shows of a collection."""
    shown = manifest.model_dump(exclude={"schema_version", "embedding", "source"})
    return shown | {"embedding_model": manifest.embedding.model}
