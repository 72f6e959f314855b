"""A passage as stores keep it: its id, its fields, and its rank."""

from __future__ import annotations

import hashlib
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from service.core.domain import Passage, ScoredPassage
from service.core.errors import StoreError
from service.retrieval.ingest.documents import PassageRecord
from service.retrieval.search.filters import metadata_tokens

# Point ids are UUIDs derived from passage ids, so a repeated upsert overwrites the same point.
_NAMESPACE = uuid.UUID("6f0c6a0e-7a52-4c39-9a0e-3f5a1f2f6f41")
# The payload fields that a search reads, and those that a comparison of stores reads.
PASSAGE_FIELDS = ["passage_id", "title", "text", "metadata", "digest"]
HASH_FIELDS = ["passage_id", "content_hash"]


def name_id(namespace: uuid.UUID, name: str) -> str:
    """Return `str(uuid.uuid5(namespace, name))` (RFC 9562, section 5.5) in a third of its time,
    since ingestion computes two per passage."""
    digest = hashlib.sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()
    octets = bytearray(digest[:16])
    octets[6] = octets[6] & 0x0F | 0x50
    octets[8] = octets[8] & 0x3F | 0x80
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def point_id(passage_id: str) -> str:
    """Return the id of a passage's point in Qdrant."""
    return name_id(_NAMESPACE, passage_id)


def fields_of(record: PassageRecord) -> dict[str, Any]:
    """Return a passage as a JSON object, without its part."""
    passage = record.passage
    return {
        "passage_id": passage.passage_id,
        "title": passage.title,
        "text": passage.text,
        "metadata": dict(passage.metadata),
        "document_id": record.document_id,
        "content_hash": record.content_hash,
        "digest": digest_of(passage.passage_id, passage.title, passage.text),
    }


def digest_of(passage_id: str, title: str, text: str) -> int:
    """Return what shows whether a stored passage is read as it was written."""
    return zlib.crc32(f"{passage_id}\0{title}\0{text}".encode(errors="surrogatepass"))


def payload_of(record: PassageRecord) -> dict[str, Any]:
    """Return what Qdrant stores with a vector."""
    return {**fields_of(record), "filter": metadata_tokens(record.passage.metadata)}


def passage_of(fields: Mapping[str, Any]) -> Passage:
    """Return the stored passage. Raises StoreError if it is damaged."""
    passage_id, title, text = fields["passage_id"], fields["title"], fields["text"]
    if fields.get("digest", digest := digest_of(passage_id, title, text)) != digest:
        raise StoreError(
            f"passage {passage_id[:200]!r} is damaged; revelator check --collection NAME shows the "
            "file, and --repair rebuilds it"
        )
    return Passage(
        passage_id=passage_id,
        title=title,
        text=text,
        metadata=fields["metadata"],
    )


def record_of(payload: Mapping[str, Any], parts: int) -> PassageRecord:
    """Return the passage of a payload; its document has `parts` passages."""
    document_id, passage = payload["document_id"], passage_of(payload)
    number = passage.passage_id.removeprefix(document_id).removeprefix("#")
    return PassageRecord(
        passage=passage,
        document_id=document_id,
        content_hash=payload["content_hash"],
        part=int(number) - 1 if number else 0,
        parts=parts,
    )


def ranked(hits: Iterable[tuple[float, Passage]]) -> list[ScoredPassage]:
    """Rank passages by score; ties are broken by passage id."""
    best = sorted(hits, key=lambda hit: (-hit[0], hit[1].passage_id))
    return [ScoredPassage(passage, rank, score) for rank, (score, passage) in enumerate(best, 1)]


def ranked_points(points: Sequence[Any]) -> list[ScoredPassage]:
    """Rank Qdrant points, which have `score` and `payload`."""
    return ranked((float(point.score), passage_of(point.payload)) for point in points)


class PointPages:
    """The listings of a store of Qdrant points."""

    def hash_pages(self) -> Iterator[dict[str, str]]:
        """Yield the content hash of every passage, by passage id."""
        yield from map(hashes_of, self._pages(HASH_FIELDS))

    def payload_pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield what is stored with every vector."""
        for points in self._pages(True):
            yield [point.payload for point in points]

    def _page(self, offset: Any, fields: list[str] | bool) -> tuple[Sequence[Any], Any]:
        """Return the points from `offset` on, and where the next page begins, if there is one."""
        raise NotImplementedError

    def _pages(self, fields: list[str] | bool) -> Iterator[Sequence[Any]]:
        points, offset = self._page(None, fields)
        yield points
        while offset is not None:
            points, offset = self._page(offset, fields)
            yield points


def hashes_of(points: Sequence[Any]) -> dict[str, str]:
    """Return the content hash of each point by passage id."""
    return {point.payload["passage_id"]: point.payload["content_hash"] for point in points}
