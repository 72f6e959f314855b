"""Dense search in Qdrant: one Qdrant collection for each collection.

The vector is named `dense`. Point ids, payloads and filters are the same as in the embedded store.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from service.core.concurrency import Batcher
from service.core.domain import ScoredPassage
from service.core.errors import StoreError
from service.core.settings.retrieval import Quantization
from service.retrieval.base import SearchRequest
from service.retrieval.documents import RESTRICTED, PassageRecord, filter_tokens, principal_tokens
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores.base import foreign, parts, to_its_end
from service.retrieval.stores.points import (
    HASH_FIELDS,
    PAGE,
    PASSAGE_FIELDS,
    PointStore,
    payload_of,
    point_id,
    ranked_points,
    search_params,
)
from service.retrieval.stores.qdrant_server import QdrantServer

VECTOR = "dense"
UPSERT = 256  # points per upsert
MOST_SEARCHES = 64  # searches in one batch
UNLIMITED = 1_000_000_000  # points per response


class QdrantStore(PointStore):
    backend = "qdrant"

    def __init__(
        self, server: QdrantServer, name: str, quantization: Quantization = "none"
    ) -> None:
        self._server = server
        self._quantization = quantization
        self._name = collection_of(name)
        self._strict: Any = None  # the collection's strict mode, once known; False without one
        self._batcher = Batcher[SearchRequest, list[ScoredPassage]](self._search_all, MOST_SEARCHES)

    async def search(self, request: SearchRequest) -> list[ScoredPassage]:
        """Return the best passages. Searches made in one turn of the event loop are sent as one
        batch."""
        return await self._batcher.ask(request)

    async def count_passages(self) -> int:
        return int((await self._call("count", exact=True)).count)

    async def compression(self) -> Quantization:
        """Return that of the collection, which may be older than the setting."""
        info = await self._call("get_collection")
        found = info.config.params.vectors[VECTOR].quantization_config
        if found is None:
            return "none"
        return "binary" if hasattr(found, "binary") else "scalar"

    async def upsert(
        self, records: Sequence[PassageRecord], vectors: Sequence[Sequence[float]]
    ) -> None:
        """Add or overwrite points. They are in Qdrant's write-ahead log once this returns."""
        from qdrant_client.models import PointStruct  # noqa: PLC0415

        points = [
            PointStruct(
                id=point_id(record.passage.passage_id),
                vector={VECTOR: list(vector)},
                payload=payload_of(record),
            )
            for record, vector in zip(records, vectors, strict=True)
        ]
        most = await self._limit("upsert_max_batchsize")
        for part in parts(points, min(UPSERT, most)):
            await to_its_end(self._call("upsert", part, wait=True))

    async def flush(self) -> None:
        """Do nothing: every call waited for the write-ahead log."""

    async def optimize(self) -> None:
        """Do nothing: Qdrant builds its graph by itself."""

    async def close(self) -> None:
        """Do nothing: the client belongs to the server."""

    async def _search_all(
        self, queries: Sequence[SearchRequest]
    ) -> list[list[ScoredPassage] | Exception]:
        most = await self._limit("max_query_limit")
        from qdrant_client import models  # noqa: PLC0415

        requests = [
            models.QueryRequest(
                query=list(query.vector),
                using=VECTOR,
                filter=_filter(query),
                limit=min(query.top_k, most),
                params=search_params(models, self._quantization),
                with_payload=PASSAGE_FIELDS,
            )
            for query in queries
        ]
        found: list[Any] = []
        for part in parts(requests, await self._limit("search_max_batchsize")):
            found += await self._call("query_batch_points", part)
        return [ranked_points(response.points) for response in found]

    async def _call(self, method: str, *given: Any, **named: Any) -> Any:
        """Call a method of the client for this collection."""
        try:
            return await self._server.call(
                lambda client: getattr(client, method)(self._name, *given, **named)
            )
        except StoreError:
            self._strict = None  # it may have got limits, which the next call reads
            raise

    async def _limit(self, name: str) -> int:
        """Return a limit of the collection's strict mode, which is read once."""
        if self._strict is None:
            info = await self._call("get_collection")
            self._strict = info.config.strict_mode_config or False
        enabled = self._strict and self._strict.enabled
        return (getattr(self._strict, name, None) if enabled else None) or UNLIMITED

    async def _retrieve(self, ids: list[Any]) -> Sequence[Any]:
        return await self._call("retrieve", ids, with_payload=HASH_FIELDS)  # type: ignore[no-any-return]

    async def _scroll(self, offset: Any, fields: list[str] | bool) -> tuple[Sequence[Any], Any]:
        most = min(PAGE, await self._limit("max_query_limit"))
        return await self._call("scroll", limit=most, offset=offset, with_payload=fields)  # type: ignore[no-any-return]

    async def _delete(self, ids: list[Any]) -> None:
        await to_its_end(self._call("delete", ids, wait=True))


async def create(
    server: QdrantServer,
    name: str,
    contract: EmbeddingContract,
    quantization: Quantization = "none",
    *,
    replace: bool = False,
) -> QdrantStore:
    """Create the collection. Raises StoreError if one with points exists, unless `replace`."""
    collection = collection_of(name)
    if await server.call(lambda client: client.collection_exists(collection)):
        held = (await server.call(lambda client: client.count(collection, exact=True))).count
        if held and not replace:
            raise foreign(f"Qdrant at {server.place}", held, collection)
        await server.call(lambda client: client.delete_collection(collection))
    from qdrant_client import models  # noqa: PLC0415

    vectors = {VECTOR: _vector_params(models, contract, quantization)}
    await server.call(lambda client: client.create_collection(collection, vectors_config=vectors))
    keyword = models.PayloadSchemaType.KEYWORD
    await server.call(
        lambda client: client.create_payload_index(
            collection, "filter", field_schema=keyword, wait=True
        )
    )
    return QdrantStore(server, name, quantization)


async def publish(server: QdrantServer, name: str, stored: str) -> None:
    """Move the public alias of a collection from another generation to `stored`, in one step."""
    known = await server.call(lambda client: client.get_aliases())
    from qdrant_client import models  # noqa: PLC0415

    alias = collection_of(name)
    new = models.CreateAlias(collection_name=collection_of(stored), alias_name=alias)
    changes: list[Any] = [models.CreateAliasOperation(create_alias=new)]
    if any(other.alias_name == alias for other in known.aliases):
        old = models.DeleteAlias(alias_name=alias)
        changes.insert(0, models.DeleteAliasOperation(delete_alias=old))
    await server.call(lambda client: client.update_collection_aliases(changes))


async def drop(server: QdrantServer, name: str) -> None:
    """Delete a collection in Qdrant, if it exists. In `name`, `*` stands for anything."""
    pattern = collection_of(name)
    held = (await server.call(lambda client: client.get_collections())).collections
    for collection in held:
        if fnmatchcase(collection.name, pattern):
            await server.call(lambda client, name=collection.name: client.delete_collection(name))  # type: ignore[misc]


def collection_of(name: str) -> str:
    return f"revelator-{name}"


def _vector_params(models: Any, contract: EmbeddingContract, quantization: Quantization) -> Any:
    distances = {"cosine": models.Distance.COSINE, "dot": models.Distance.DOT}
    scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
    binary = models.BinaryQuantizationConfig(always_ram=True)
    quantizations: dict[str, Any] = {
        "none": None,
        "scalar": models.ScalarQuantization(scalar=scalar),
        "binary": models.BinaryQuantization(binary=binary),
    }
    return models.VectorParams(
        size=contract.dimension,
        distance=distances[contract.distance],
        quantization_config=quantizations[quantization],
        on_disk=True if quantization != "none" else None,  # the compressed copies are searched
    )


def _filter(request: SearchRequest) -> Any:
    from qdrant_client import models  # noqa: PLC0415

    def has(tokens: list[str]) -> Any:
        return models.FieldCondition(key="filter", match=models.MatchAny(any=tokens))

    must = [has(tokens) for tokens in filter_tokens(request.filter)]
    shut: list[Any] = [point_id(passage_id) for passage_id in sorted(request.exclude)]
    must_not: list[Any] = [models.HasIdCondition(has_id=shut)] if shut else []
    if (tokens := principal_tokens(request.principals)) is not None:
        must_not.append(models.Filter(must=[has([RESTRICTED])], must_not=[has(tokens)]))
    return models.Filter(must=must, must_not=must_not) if must or must_not else None
