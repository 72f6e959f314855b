"""Passages as Qdrant's points, alike on a server and in the process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from service.core.domain import ScoredPassage
from service.core.settings.retrieval import Quantization
from service.retrieval.base import ACCESS, ranked
from service.retrieval.documents import PassageRecord, fields_of, metadata_tokens, passage_of
from service.retrieval.stores.base import VectorStore, parts

# Point ids are UUIDs derived from passage ids, so a repeated upsert overwrites the same point.
_NAMESPACE = uuid.UUID("6f0c6a0e-7a52-4c39-9a0e-3f5a1f2f6f41")
# The payload fields that a search reads, and those that a comparison of stores reads.
PASSAGE_FIELDS = ["passage_id", "title", "text", "metadata", "digest"]
HASH_FIELDS = ["passage_id", "content_hash"]
PAGE = 1_000  # points read or deleted at once
# Candidates in a search of the graph; recall@10 of 100,000 is 0.91 with Qdrant's 100.
EF: Final = 400
OVERSAMPLING: Final = 2.0  # candidates of compressed vectors per result, which the full ones rank


def point_id(passage_id: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, passage_id))


def payload_of(record: PassageRecord) -> dict[str, Any]:
    """Return what is stored with a vector."""
    metadata = record.passage.metadata
    restricted = {ACCESS: metadata[ACCESS]} if ACCESS in metadata else {}
    return {**fields_of(record), "filter": metadata_tokens(metadata), **restricted}


def ranked_points(points: Sequence[Any]) -> list[ScoredPassage]:
    """Rank points, which have `score` and `payload`."""
    return ranked((float(point.score), passage_of(point.payload)) for point in points)


def search_params(models: Any, quantization: Quantization) -> Any:
    """Return how to search, in the classes of `models`."""
    again = models.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
    return models.SearchParams(hnsw_ef=EF, quantization=again if quantization != "none" else None)


class PointStore(VectorStore):
    """A store of points, by what it retrieves, lists and deletes at once."""

    async def hashes(self, passage_ids: Sequence[str]) -> dict[str, str]:
        found = {}
        for ids in parts([*map(point_id, passage_ids)], PAGE):
            for point in await self._retrieve(ids):
                found[point.payload["passage_id"]] = point.payload["content_hash"]
        return found

    async def payloads(
        self, fields: list[str] | bool = True
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        points, offset = await self._scroll(None, fields)
        yield [point.payload for point in points]
        while offset is not None:
            points, offset = await self._scroll(offset, fields)
            yield [point.payload for point in points]

    async def delete(self, passage_ids: Sequence[str]) -> None:
        for ids in parts([*map(point_id, passage_ids)], PAGE):
            await self._delete(ids)

    async def _retrieve(self, ids: list[Any]) -> Sequence[Any]:
        """Return those of the points that are stored, with `HASH_FIELDS` of their payloads."""
        raise NotImplementedError

    async def _scroll(self, offset: Any, fields: list[str] | bool) -> tuple[Sequence[Any], Any]:
        """Return the points from `offset` on, and where the next page begins, if there is one."""
        raise NotImplementedError

    async def _delete(self, ids: list[Any]) -> None:
        raise NotImplementedError
