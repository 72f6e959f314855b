"""A passage as a point of Qdrant, embedded or on a server: its id and its payload."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from service.core.domain import Passage, ScoredPassage
from service.retrieval.ingest.documents import Record
from service.retrieval.search.filters import metadata_tokens
from service.retrieval.stores.name_ids import name_id

# Point ids are UUIDs made of passage ids, so that a repeated upsert hits the same point.
_NAMESPACE = uuid.UUID("6f0c6a0e-7a52-4c39-9a0e-3f5a1f2f6f41")
# What a search reads of a payload, and what a comparison of stores does.
PASSAGE_FIELDS = ["passage_id", "title", "text", "metadata"]
HASH_FIELDS = ["passage_id", "content_hash"]


def point_id(passage_id: str) -> str:
    """The point a passage is, always the same."""
    return name_id(_NAMESPACE, passage_id)


def payload_of(record: Record) -> dict[str, Any]:
    passage = record.passage
    return {
        "passage_id": passage.passage_id,
        "title": passage.title,
        "text": passage.text,
        "metadata": dict(passage.metadata),
        "document_id": record.document_id,
        "content_hash": record.content_hash,
        "filter": metadata_tokens(passage.metadata),
    }


def ranked(points: Sequence[Any]) -> list[ScoredPassage]:
    """Points with `score` and `payload` as hits, best first, ties by passage id."""
    hits = [(float(point.score), _passage(point.payload)) for point in points]
    hits.sort(key=lambda hit: (-hit[0], hit[1].passage_id))
    return [ScoredPassage(passage, rank, score) for rank, (score, passage) in enumerate(hits, 1)]


def hashes_of(points: Sequence[Any]) -> dict[str, str]:
    """Content hash by passage id."""
    return {point.payload["passage_id"]: point.payload["content_hash"] for point in points}


def record_of(payload: Mapping[str, Any], parts: int) -> Record:
    """The passage that a payload was made of; `parts` are those of its document."""
    document_id, passage = payload["document_id"], _passage(payload)
    number = passage.passage_id.removeprefix(document_id).removeprefix("#")
    return Record(
        passage=passage,
        document_id=document_id,
        content_hash=payload["content_hash"],
        part=int(number) - 1 if number else 0,
        parts=parts,
    )


def _passage(payload: Mapping[str, Any]) -> Passage:
    return Passage(
        passage_id=payload["passage_id"],
        title=payload["title"],
        text=payload["text"],
        metadata=payload["metadata"],
    )
