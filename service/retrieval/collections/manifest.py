"""What a collection is: a small document, stored as manifest_store.py explains."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from service.core.errors import InvalidRequest, StoreError
from service.retrieval.embedding.contract import EmbeddingContract

Analysis = Literal["english", "simple"]

EMPTY_HASH = "0" * 64

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


class Leftover(BaseModel):
    """A generation other than the current one: half built, or replaced and still in use.

    `since` is when it was begun or replaced, in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: int
    since: float


class Manifest(BaseModel):
    """The description of one collection.

    `content_hash` is the sum, modulo 2^256, of SHA-256 over each document's id and content hash, so
    that the order of arrival does not matter. `state` is `building` from the first change of an
    ingest to its end. `source` names the shipped file that a collection was made from; `stores` are
    its backends, BM25 first. `generation` is the current pair of stores; a re-index builds the next
    one beside it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[3] = 3  # of the stores' contents; no other is read
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
    generation: int = 1
    leftovers: tuple[Leftover, ...] = ()

    @property
    def qualified_name(self) -> str:
        """Of this generation, while it is held: no collection's own name has an @."""
        return f"{self.name}@{self.generation}"

    def with_fields(self, fields: Iterable[str]) -> Manifest:
        known = tuple(sorted({*self.metadata_fields, *fields}))
        return self.model_copy(update={"metadata_fields": known})

    def next_generation(self) -> int:
        """A number that no generation of this collection has or had."""
        return 1 + max(self.generation, *(each.generation for each in self.leftovers), 0)

    def succeeded(self, generation: int, embedding: EmbeddingContract) -> Manifest:
        """Of an empty collection that is to take this one's place."""
        return self.model_copy(
            update={
                "generation": generation, "embedding": embedding, "leftovers": (), "documents": 0,
                "passages": 0, "content_hash": EMPTY_HASH, "state": "complete",
            }
        )  # fmt: skip

    def leaving(self, generation: int, since: float) -> Manifest:
        """With `generation` among the leftovers from `since` on."""
        others = self.without((generation,)).leftovers
        left = (*others, Leftover(generation=generation, since=since))
        return self.model_copy(update={"leftovers": left})

    def without(self, generations: Iterable[int]) -> Manifest:
        """With these generations among the leftovers no more."""
        gone = set(generations)
        left = tuple(each for each in self.leftovers if each.generation not in gone)
        return self.model_copy(update={"leftovers": left})


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
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise StoreError(
            f"{place}: {where}: {problem['msg']}; it was created by another version or is "
            "damaged: delete the collection and ingest it again"
        ) from None
