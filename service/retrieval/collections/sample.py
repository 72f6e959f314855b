"""The sample collection that the wheel carries: real passages and their vectors.

`vectors.f16` is the corpus file's SHA-256 (32 bytes) followed by one row of 384 little-endian
half floats for each passage, in the order of corpus and passages. Plain, because a base install
has no numpy; bound to its corpus, because stale vectors would be silently wrong. This module of
commit 2a63a3c0 wrote them; without them the passages are embedded at the first use.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import orjson
from anyio import to_thread

from service.retrieval.collections.lifecycle import Collection
from service.retrieval.collections.manifest import Manifest
from service.retrieval.collections.writer import CollectionWriter
from service.retrieval.documents import Document, parse_document, passages_of
from service.retrieval.embedding.contract import MINILM, Embedder, Vector, passage_input

SAMPLE = "sample"
DESCRIPTION = "Sample corpus of Wikipedia passages, for trying out the service."
CORPUS = "corpus.jsonl"
VECTORS = "vectors.f16"
DIMENSION = MINILM.dimension
_HASH_BYTES = 32
_ROW_BYTES = 2 * DIMENSION


class Shipped(Embedder):
    """Looks up the vectors of the sample's passages."""

    contract = MINILM
    batch = 256

    def __init__(self, vectors: Mapping[str, Vector]) -> None:
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [self._vectors[text] for text in texts]


@dataclass(frozen=True, slots=True)
class Sample:
    """A folder with corpus.jsonl and, made by MiniLM, vectors.f16."""

    folder: Path

    @classmethod
    def shipped(cls) -> Sample:
        return cls(Path(str(resources.files("service"))) / "models" / "sample")

    @property
    def exists(self) -> bool:
        return (self.folder / CORPUS).is_file()

    def source(self) -> str:
        """SHA-256 of the corpus file."""
        return hashlib.sha256((self.folder / CORPUS).read_bytes()).hexdigest()

    def documents(self) -> Iterator[Document]:
        for line in (self.folder / CORPUS).read_bytes().splitlines():
            yield parse_document(orjson.loads(line))

    def manifest(self, embedder: Embedder) -> Manifest:
        return Manifest(
            name=SAMPLE,
            description=DESCRIPTION,
            embedding=embedder.contract,
            source=self.source(),
        )

    def expected(self, embedder: Embedder) -> Manifest:
        """Return the manifest with the counts of the complete sample."""
        documents = list(self.documents())
        passages = len(_inputs(documents))
        return self.manifest(embedder).having(documents=len(documents), passages=passages)

    async def fill(self, collection: Collection, embedder: Embedder) -> None:
        """Write every document, with the shipped vectors if they are of the embedder's model."""
        documents = await to_thread.run_sync(lambda: list(self.documents()))
        if embedder.contract == MINILM:
            vectors = await to_thread.run_sync(self.vectors, documents)
            embedder = Shipped(vectors) if vectors else embedder
        async with CollectionWriter(collection, embedder) as writer:
            await writer.write(documents)

    def vectors(self, documents: Sequence[Document]) -> dict[str, Vector]:
        """Return the shipped vectors by their texts; empty if there are none, or those of another
        corpus."""
        path = self.folder / VECTORS
        if not path.is_file():
            return {}
        stored, texts = path.read_bytes(), _inputs(documents)
        rows = stored[_HASH_BYTES:]
        if stored[:_HASH_BYTES].hex() != self.source() or len(rows) != _ROW_BYTES * len(texts):
            return {}
        return dict(zip(texts, map(list, struct.iter_unpack(f"<{DIMENSION}e", rows)), strict=True))


def _inputs(documents: Sequence[Document]) -> list[str]:
    return [
        passage_input(record.passage) for document in documents for record in passages_of(document)
    ]
