"""The manifest of a collection: its description, and where that is stored.

There is one authority, and it is written last. BM25 in the process: the authority is `<data
directory>/collections/<name>/manifest.json`. BM25 in Elasticsearch: a document of its index
`revelator.manifests`, so that a gateway with an empty data directory finds every collection, and
several gateways agree.

The order of one change: (1) the manifest says what is meant to happen, (2) the contents of the
stores, (3) the manifest says that it has happened, (4) if that is in Elasticsearch, the file, from
which a restarted gateway serves while Elasticsearch is unavailable. A kill leaves a manifest that
says what was interrupted, or an older file, which is not read until then.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from anyio import to_thread
from pydantic import ValidationError

from service.core.domain import Model
from service.core.errors import InvalidRequest, StoreError
from service.core.files import discard, save_whole, sweep
from service.core.validation import explain
from service.retrieval.base import Analysis
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.reports import CollectionInfo

FILE = "manifest.json"
MOST_FIELDS = 256  # metadata fields of a collection
EMPTY_HASH = "0" * 64
EMPTY: Final = {"documents": 0, "passages": 0, "content_hash": EMPTY_HASH}
EMBEDDED = ("tantivy", "qdrant_edge")  # the stores of a collection that no server holds

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


class Manifest(Model):
    """The description of one collection.

    `content_hash` is the sum, modulo 2^256, of SHA-256 over each document's id and content hash, so
    that the order of arrival does not matter. `state` is `building` from the first change of an
    ingest to its end, and `open` between the requests of one: the stores agree, and more documents
    were announced. It is `repairing` while a complete collection is repaired. `source` names the
    shipped file that a collection was made from; `stores` are its backends, BM25 first.
    `generation` is the current pair of stores; a re-index builds the next one beside it. The
    `leftovers` are other generations, incomplete or replaced and perhaps still in use, each with
    the time, in seconds since 1970, when it was begun or replaced. `detects`: the first batch
    decides on the `analysis`.
    """

    schema_version: Literal[5] = 5  # the version of the stores' format; others are not read
    name: str
    description: str = ""
    analysis: Analysis = "english"
    detects: bool = False
    metadata_fields: tuple[str, ...] = ()
    embedding: EmbeddingContract
    documents: int = 0
    passages: int = 0
    content_hash: str = EMPTY_HASH
    state: Literal["building", "open", "repairing", "complete"] = "complete"
    source: str | None = None
    stores: tuple[str, str] = EMBEDDED
    generation: int = 1
    leftovers: Mapping[int, float] = {}
    deleting: tuple[str, ...] = ()  # documents whose deletion has begun; after a kill it goes on
    restoring: bool = False  # the BM25 store is being filled from the dense one

    @property
    def interrupted(self) -> bool:
        """Whether a write has begun and not ended, so that the stores may differ."""
        return self.state in {"building", "repairing"} or bool(self.deleting) or self.restoring

    @property
    def awaits_more(self) -> bool:
        """Whether documents that were announced are missing, or may be after a kill."""
        return self.state in {"building", "open"}

    @property
    def unfinished(self) -> str | None:
        """What has not ended, and what to do then; None if the collection is complete."""
        if self.state == "repairing" or self.deleting:
            what = "a repair" if self.state == "repairing" else "a deletion"
            return f"{what} was interrupted; it is completed when the collection is used"
        if self.state == "complete":
            return None
        running = "is running, or " if self.state == "open" else ""
        return (
            f"an ingest {running}was interrupted; run it again, or `revelator check --collection "
            f"{self.name} --repair`"
        )

    def having(self, **fields: Any) -> Manifest:
        """Return the manifest with other values of these fields."""
        return self.model_copy(update=fields)

    def rebuilding(self, *, restoring: bool) -> Manifest:
        """Return what the manifest says while a lost store is rebuilt."""
        state = self.state if self.awaits_more else "repairing"
        return self.having(state=state, restoring=restoring)

    @property
    def stored_name(self) -> str:
        """The name of this generation on servers."""
        return stored_name(self.name, self.generation)

    def with_fields(self, fields: Iterable[str]) -> Manifest:
        """Return the manifest with these fields as well. Raises InvalidRequest if it then has too
        many."""
        names = sorted({*self.metadata_fields, *fields})
        if len(names) > max(MOST_FIELDS, len(self.metadata_fields)):
            raise InvalidRequest(
                f"collection {self.name!r} would have more than {MOST_FIELDS} metadata fields; "
                "combine varying keys into one field"
            )
        return self.having(metadata_fields=tuple(names))

    def succeeded(self, generation: int, embedding: EmbeddingContract) -> Manifest:
        """Return the manifest of an empty collection that is to replace this one."""
        fresh = {"generation": generation, "embedding": embedding, "leftovers": {}}
        return self.having(**fresh, **EMPTY, state="complete")

    def leaving(self, generation: int, since: float) -> Manifest:
        """Return the manifest with `generation` added to the leftovers, from `since` on."""
        return self.having(leftovers={**self.leftovers, generation: since})

    def without(self, generations: Iterable[int]) -> Manifest:
        """Return the manifest without these generations among the leftovers."""
        left = {**self.leftovers}
        for generation in generations:
            left.pop(generation, None)
        return self.having(leftovers=left)


def stored_name(name: str, generation: int | str) -> str:
    """The name of one generation on servers, `<collection>.<number>`. No collection's name has a
    dot, so that it cannot be taken for another collection's."""
    return f"{name}.{generation}"


def check_name(name: str) -> str:
    """Validate a collection name, which is also a folder and a part of URLs. Raises
    InvalidRequest."""
    if not _NAME.match(name):
        raise InvalidRequest(
            f"collection name {name[:80]!r} is not valid: use 1 to 63 characters of a-z, 0-9, _ "
            "and -, beginning with a letter or digit"
        )
    return name


def add_to_hash(total: str, documents: Iterable[tuple[str, str]], sign: int = 1) -> str:
    """Add the given (id, content hash) pairs to `total`, or subtract them for sign -1."""
    number = int(total, 16)
    for document_id, content_hash in documents:
        digest = hashlib.sha256(f"{document_id}\0{content_hash}".encode()).digest()
        number += sign * int.from_bytes(digest)
    return f"{number % 2**256:064x}"


def parse_manifest(content: bytes, place: str) -> Manifest:
    """Parse a manifest. Raises StoreError, which names `place`, for another version or damaged
    data."""
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise StoreError(
            f"{place}: {explain(error.errors())}; it was created by another version or is damaged: "
            "delete the collection and ingest it again"
        ) from None


class FileManifests:
    """`<root>/<name>/manifest.json`, in a data directory that this process owns. Raises StoreError
    for a manifest that cannot be read or written."""

    shared = False  # whether other processes may write the same collections

    def __init__(self, root: Path) -> None:
        self._root = root

    async def names(self) -> set[str]:
        """Return the names of all collections."""
        return await to_thread.run_sync(self._names)

    async def read(self, name: str) -> Manifest | None:
        """Return a collection's manifest, or None if there is none."""
        return await to_thread.run_sync(self._read, name)

    async def write(self, manifest: Manifest) -> None:
        """Write a manifest atomically and durably."""
        path = self._root / manifest.name / FILE
        content = {**manifest.model_dump(mode="json"), "checksum": _checksum(manifest)}
        whole = orjson.dumps(content, option=orjson.OPT_INDENT_2)
        await to_thread.run_sync(save_whole, path, whole)

    async def forget(self, name: str) -> None:
        """Delete a manifest, and the collection's folder in the data directory."""
        await to_thread.run_sync(discard, self._root / name)

    @asynccontextmanager
    async def claim(self, name: str) -> AsyncIterator[None]:
        """Do nothing: the process owns the directory, so there is no other writer."""
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
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}; restore it") from None
        with contextlib.suppress(orjson.JSONDecodeError):
            fields = orjson.loads(content)
            given = fields.pop("checksum", None) if isinstance(fields, dict) else None
            if given is not None:
                manifest = parse_manifest(orjson.dumps(fields), str(path))
                if given != _checksum(manifest):
                    raise StoreError(f"{path} is damaged: its checksum differs; restore it")
                return manifest
        return parse_manifest(content, str(path))


def _checksum(manifest: Manifest) -> int:
    return zlib.crc32(manifest.model_dump_json().encode())


def info_of(manifest: Manifest) -> CollectionInfo:
    """Return the collection that a manifest describes."""
    fields = manifest.model_dump(include=set(CollectionInfo.model_fields)) | {
        "embedding_model": manifest.embedding.model,
        "state": "complete" if manifest.state == "complete" else "building",
    }
    return CollectionInfo.model_validate(fields)


def describe(manifest: Manifest) -> dict[str, Any]:
    """Return the collection that a manifest describes, with its stores."""
    return {**info_of(manifest).model_dump(), "stores": manifest.stores}
