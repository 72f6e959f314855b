"""What a collection is, in one JSON file that is always whole."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from service.errors import InvalidRequest, StoreError
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.presets import HASHING, MINILM

Analysis = Literal["english", "simple"]

FILE = "manifest.json"
EMPTY_HASH = "0" * 64

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


class Manifest(BaseModel):
    """Of one collection.

    `content_hash` is the sum, modulo 2^256, of SHA-256 over each document's id and content hash:
    the order of arrival does not matter. `state` is `building` from the first change of an ingest
    to its end. `source` names the shipped file that a collection was made from; `stores` the
    backends that hold it, BM25 first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2] = 2  # of the stores' contents; 1 is read too
    name: str
    description: str = ""
    analysis: Analysis = "english"
    metadata_fields: tuple[str, ...] = ()
    embedding: EmbeddingContract
    documents: int = 0
    passages: int = 0
    content_hash: str = EMPTY_HASH
    state: Literal["building", "complete"] = "complete"
    source: str | None = None
    stores: tuple[str, str] = ("tantivy", "qdrant_edge")

    @model_validator(mode="before")
    @classmethod
    def _from_version_1(cls, value: Any) -> Any:
        """It named the model alone, of which there were two."""
        if not isinstance(value, dict) or value.get("schema_version") != 1:
            return value
        kept = {name: each for name, each in value.items() if name != "dimension"}
        model = kept.pop("embedding_model", None)
        known = {contract.model: contract for contract in (MINILM, HASHING)}
        return {**kept, "schema_version": 2, "embedding": known.get(model)}

    def with_fields(self, fields: Iterable[str]) -> Manifest:
        known = tuple(sorted({*self.metadata_fields, *fields}))
        return self.model_copy(update={"metadata_fields": known})


def check_name(name: str) -> str:
    """Raises InvalidRequest: a name is also a folder and a part of URLs."""
    if not _NAME.match(name):
        raise InvalidRequest(
            f"collection {name[:80]!r}: a name is 1 to 63 of a-z, 0-9, _ and -, and begins with a "
            "letter or digit"
        )
    return name


def add_to_hash(total: str, documents: Iterable[tuple[str, str]], sign: int = 1) -> str:
    """`total` with the given (id, content hash) pairs added, or taken out for sign -1."""
    number = int(total, 16)
    for document_id, content_hash in documents:
        digest = hashlib.sha256(f"{document_id}\0{content_hash}".encode()).digest()
        number += sign * int.from_bytes(digest)
    return f"{number % 2**256:064x}"


def read_manifest(folder: Path) -> Manifest:
    """Raises StoreError; FileNotFoundError where there is none."""
    path = folder / FILE
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise StoreError(
            f"{path}: {where}: {problem['msg']}; it was made by another version or is damaged: "
            "delete the collection's folder and ingest it again"
        ) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Atomic and durable: the old file or the new one, also after a power cut."""
    path = folder / FILE
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        file.write(manifest.model_dump_json(indent=2).encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
