"""Dense search in the process: one qdrant-edge shard per collection, cosine over unit vectors."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import qdrant_edge as edge

from service.domain import ScoredPassage
from service.errors import StoreError
from service.retrieval.base import StoreQuery
from service.retrieval.documents import Record
from service.retrieval.filters import filter_tokens
from service.retrieval.points import (
    HASH_FIELDS,
    PASSAGE_FIELDS,
    hashes_of,
    payload_of,
    point_id,
    ranked,
)
from service.retrieval.threads import Threads

SCROLL = 2_000  # points read at once when everything is listed
DELETE = 1_000  # points deleted at once


class QdrantEdgeStore:
    """Blocking methods run in a thread of the caller's choice; `search` chooses its own."""

    backend = "qdrant_edge"

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._write_lock = threading.Lock()
        self._threads = Threads(self.backend)

    @classmethod
    def open(cls, folder: Path, dimension: int) -> Self:
        """Open or create the shard in `folder`. Raises StoreError."""
        folder.mkdir(parents=True, exist_ok=True)
        size = edge.EdgeVectorParams(size=dimension, distance=edge.Distance.Cosine)
        try:
            if any(folder.iterdir()):
                return cls(edge.EdgeShard.load(str(folder)))
            shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=size))
            for field in ("filter", "passage_id"):
                shard.update(
                    edge.UpdateOperation.create_field_index(field, edge.PayloadSchemaType.Keyword)
                )
        except Exception as error:
            raise StoreError(
                f"the vectors in {folder} cannot be opened: {error}; delete the collection and "
                "ingest it again"
            ) from error
        return cls(shard)

    async def search(self, query: StoreQuery) -> list[ScoredPassage]:
        return await self._threads.run(self._search, query)

    def _search(self, query: StoreQuery) -> list[ScoredPassage]:
        if query.top_k < 1:
            return []
        points = self._shard.query(
            edge.QueryRequest(
                limit=query.top_k,
                query=edge.Query.Nearest(list(query.vector)),
                filter=_filter(query),
                with_payload=PASSAGE_FIELDS,
            )
        )
        return ranked(points)

    def count_passages(self) -> int:
        return int(self._shard.count(edge.CountRequest()))

    def hashes(self, passage_ids: Sequence[str]) -> dict[str, str]:
        """Content hash (of the document) of each of these passages that is stored."""
        if not passage_ids:
            return {}
        ids = [point_id(passage_id) for passage_id in passage_ids]
        # Its stub says the last two are optional; they are not.
        return hashes_of(self._shard.retrieve(ids, HASH_FIELDS, False))

    def all_hashes(self) -> dict[str, str]:
        """Content hash of every passage, by passage id."""
        found: dict[str, str] = {}
        offset: Any = None
        while True:
            request = edge.ScrollRequest(
                limit=SCROLL,
                offset=offset,
                with_payload=HASH_FIELDS,
                with_vector=False,
            )
            records, offset = self._shard.scroll(request)
            found |= hashes_of(records)
            if offset is None:
                return found

    def upsert(self, records: Sequence[Record], vectors: Sequence[Sequence[float]]) -> None:
        """Add or overwrite points; they survive the death of the process once this returns."""
        points = [
            edge.Point(point_id(record.passage.passage_id), list(vector), payload_of(record))
            for record, vector in zip(records, vectors, strict=True)
        ]
        with self._write_lock:
            self._shard.update(edge.UpdateOperation.upsert_points(points))

    def delete(self, passage_ids: Sequence[str]) -> None:
        with self._write_lock:
            for start in range(0, len(passage_ids), DELETE):
                part = passage_ids[start : start + DELETE]
                ids: list[int | uuid.UUID | str] = [point_id(passage_id) for passage_id in part]
                self._shard.update(edge.UpdateOperation.delete_points(ids))

    def flush(self) -> None:
        with self._write_lock:
            self._shard.flush()

    def optimize(self) -> None:
        """Build the graph index. Freezes the whole process: qdrant-edge keeps the interpreter lock.

        Measured: 6 s for 8,000 vectors on a busy core. Without it a search scans every vector.
        """
        with self._write_lock:
            self._shard.optimize()

    def close(self) -> None:
        with self._write_lock:
            self._shard.flush()
            self._shard.close()


def _filter(query: StoreQuery) -> Any:
    must: list[Any] = [
        edge.FieldCondition("filter", match=edge.MatchAny(tokens))
        for tokens in filter_tokens(query.filter)
    ]
    shut: set[Any] = {point_id(passage_id) for passage_id in query.exclude}
    must_not: list[Any] = [edge.HasIdCondition(shut)] if shut else []
    return edge.Filter(must=must, must_not=must_not) if must or must_not else None
