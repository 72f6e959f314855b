"""Dense search in the process: one qdrant-edge shard per collection.

qdrant-edge holds the interpreter lock during every call, so a thread would not make a search faster
and would cost it 0.1 ms. Searches therefore run on the event loop, one call for all searches of one
turn. Writing and listing run in worker threads (`native_call`); `_lock` prevents the shard from
being replaced meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import qdrant_edge as edge
import structlog
from anyio import to_thread

from service.core.concurrency import Batcher
from service.core.domain import ScoredPassage
from service.core.errors import RetrievalFailure, StoreError, StoreLost
from service.core.files import check_room
from service.core.native import native, native_call
from service.core.settings.retrieval import Quantization
from service.retrieval.base import ACCESS, EVERYTHING, SearchRequest
from service.retrieval.documents import PassageRecord, filter_tokens
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores.digests import set_aside, unseal
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

MOST_SEARCHES = 16  # searches per call; the event loop waits for it

_log = structlog.get_logger(__name__)


class QdrantEdgeStore(PointStore):
    backend = "qdrant_edge"

    def __init__(
        self, folder: Path, contract: EmbeddingContract, quantization: Quantization = "none"
    ) -> None:
        """Open or create the shard in `folder`, blocking. Raises StoreError."""
        self.folder = folder
        self._contract = contract
        self._quantization = quantization
        self._params = search_params(edge, quantization)
        # Whether there are points with the field of `access`, which is indexed before the first.
        self._restricted = False
        self._lock = threading.Lock()
        self._batcher = Batcher[SearchRequest, list[ScoredPassage]](self._search_all, MOST_SEARCHES)
        folder.mkdir(parents=True, exist_ok=True)
        config = edge_config(contract, quantization)
        with native(self, StoreLost):
            if any(folder.iterdir()):
                self._shard: Any = edge.EdgeShard.load(str(folder), config)
                self._restricted = ACCESS in self._shard.info().payload_schema
                return
            self._shard = edge.EdgeShard.create(str(folder), config)
            self._index("filter")

    async def search(self, request: SearchRequest) -> list[ScoredPassage]:
        """Return the best passages. The batcher lets a turn of the event loop pass, in which
        requests to servers in the same hybrid search are sent, before this blocks the loop."""
        self._check_size([request.vector])
        return await self._batcher.ask(request)

    async def _search_all(
        self, queries: Sequence[SearchRequest]
    ) -> list[list[ScoredPassage] | Exception]:
        requests = [self._request(query) for query in queries]
        with native(self, RetrievalFailure):
            if len(requests) == 1:
                found = [self._shard.query(requests[0])]
            else:
                found = self._shard.query_batch(edge.QueryBatchRequest(requests))
            return [ranked_points(points) for points in found]

    def _request(self, request: SearchRequest) -> Any:
        return edge.QueryRequest(
            limit=request.top_k,
            query=edge.Query.Nearest(list(request.vector)),
            filter=_filter(request, restricted=self._restricted),
            params=self._params,
            with_payload=PASSAGE_FIELDS,
        )

    def _check_size(self, vectors: Sequence[Sequence[float]]) -> None:
        if any(len(vector) != self._contract.dimension for vector in vectors):
            raise StoreError(
                f"the vectors do not have {self._contract.dimension} dimensions as those in "
                f"{self.folder}; if the embedding model changed, run revelator ingest --replace"
            )

    @native_call
    def count_passages(self) -> int:
        with self._lock:
            return int(self._shard.count(edge.CountRequest()))

    async def compression(self) -> Quantization:
        return self._quantization

    @native_call
    def _retrieve(self, ids: list[Any]) -> Sequence[Any]:
        with self._lock:
            # Its stub declares the last two as optional, but they are required.
            return self._shard.retrieve(ids, HASH_FIELDS, False)  # type: ignore[no-any-return]

    @native_call
    def _scroll(self, offset: Any, fields: list[str] | bool) -> tuple[Sequence[Any], Any]:
        request = edge.ScrollRequest(
            limit=PAGE, offset=offset, with_payload=fields, with_vector=False
        )
        with self._lock:
            points, following = self._shard.scroll(request)
        return points, following

    @native_call
    def upsert(self, records: Sequence[PassageRecord], vectors: Sequence[Sequence[float]]) -> None:
        """Add or overwrite points. They survive the death of the process once this returns."""
        check_room(self.folder)
        self._check_size(vectors)
        points = [
            edge.Point(point_id(record.passage.passage_id), list(vector), payload_of(record))
            for record, vector in zip(records, vectors, strict=True)
        ]
        with self._lock:
            unseal(self.folder)
            if not self._restricted and any(
                ACCESS in record.passage.metadata for record in records
            ):
                self._index(ACCESS)
                self._restricted = True
            self._shard.update(edge.UpdateOperation.upsert_points(points))

    def _index(self, field: str) -> None:
        kind = edge.PayloadSchemaType.Keyword
        self._shard.update(edge.UpdateOperation.create_field_index(field, kind))

    @native_call
    def _delete(self, ids: list[Any]) -> None:
        with self._lock:
            unseal(self.folder)
            self._shard.update(edge.UpdateOperation.delete_points(ids))

    @native_call
    def flush(self) -> None:
        with self._lock:
            self._shard.flush()

    async def optimize(self) -> None:
        """Build the graph index if so much was written that searches without it are slow.

        Nobody may write meanwhile. Searches continue; the event loop stops only while the shard is
        opened again (66 ms for 20,000 vectors). A failure is logged: searches stay correct, and the
        next write tries again.
        """
        info = self._shard.info()
        if not is_due(info.points_count, info.indexed_vectors_count):
            return
        await self.flush()
        try:
            built = await build(self.folder, self._contract, self._quantization)
        except StoreError as error:
            _log.warning("graph_not_built", reason=error.detail)
            return
        with self._lock:  # on the event loop, so no search is running
            self._shard.close()
            set_aside(self.folder)
            put_in_place(built, self.folder)
            self._shard = edge.EdgeShard.load(str(self.folder))

    @native_call
    def close(self) -> None:
        with self._lock:
            self._shard.flush()
            self._shard.close()


def _filter(request: SearchRequest, *, restricted: bool) -> Any:
    must: list[Any] = [
        edge.FieldCondition("filter", match=edge.MatchAny(tokens))
        for tokens in filter_tokens(request.filter)
    ]
    shut: set[Any] = {point_id(passage_id) for passage_id in request.exclude}
    must_not: list[Any] = [edge.HasIdCondition(shut)] if shut else []
    should: list[Any] = []
    if restricted and not request.principals >= EVERYTHING:
        # A field of its own, because to look among all tokens of a point takes twice as long.
        named = edge.MatchAny(sorted(request.principals))
        should = [
            edge.FieldCondition(ACCESS, is_empty=True),
            edge.FieldCondition(ACCESS, match=named),
        ]
    if must or must_not or should:
        return edge.Filter(must=must, must_not=must_not, should=should)
    return None


# The graph index, built outside the shard that is searched.
#
# qdrant-edge builds the graph in one call that holds the interpreter lock, which would stop a
# server for seconds to minutes. Therefore a child process builds it, in a copy of the shard's
# folder:
#
#     python -m service.retrieval.stores.qdrant_edge_store FOLDER CONTRACT_JSON QUANTIZATION
#
# The caller prevents writes meanwhile, and then replaces the folder by the copy. If the process is
# killed in between, `recover` removes or restores the folders that are left; both hold the same
# vectors.

HNSW_M, HNSW_EF = 16, 100  # Qdrant's default
LEAST = 20_000  # vectors outside the graph; comparing so many one by one takes 1 to 2 ms
SHARE = 0.2  # share of all vectors, so that a growing collection is not rebuilt too often
PATIENCE_S = 7_200.0  # 100,000 vectors take about a minute on one core
FULL_SCAN_KB = 10_000  # Qdrant's default: less is faster to compare one by one than by the graph
POLITENESS = 10  # niceness: searches have priority
DISTANCES = {"cosine": edge.Distance.Cosine, "dot": edge.Distance.Dot}


def is_due(vectors: int, in_graph: int) -> bool:
    """Return whether building the graph is worth its time. `in_graph` of the `vectors` are in it
    already."""
    return vectors - in_graph >= max(LEAST, SHARE * vectors)


async def build(folder: Path, contract: EmbeddingContract, quantization: Quantization) -> Path:
    """Build a copy of the shard's folder with a graph of all vectors. Raises StoreError. An error
    or a cancellation removes the copy and ends the child process."""
    built = _beside(folder, "graph")
    given = [contract.model_dump_json(), quantization]
    command = [sys.executable, "-m", __name__, str(built), *given]
    try:
        await to_thread.run_sync(shutil.copytree, folder, built)
        with anyio.fail_after(PATIENCE_S):
            done = await anyio.run_process(command, check=False)
        if done.returncode:
            raise StoreError(done.stderr.decode(errors="replace").strip()[-300:])
    except (OSError, TimeoutError, StoreError) as error:
        shutil.rmtree(built, ignore_errors=True)
        reason = str(error) or f"it took longer than {PATIENCE_S:.0f} s"
        raise StoreError(
            f"the graph of the vectors in {folder} cannot be built: {reason}"
        ) from error
    except BaseException:
        shutil.rmtree(built, ignore_errors=True)
        raise
    return built


def put_in_place(built: Path, folder: Path) -> None:
    """Replace `folder` by `built`. The folder must not be open anywhere."""
    old = _beside(folder, "old")
    folder.rename(old)
    built.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> None:
    """Clean up after a `build` or `put_in_place` that was interrupted."""
    old = _beside(folder, "old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for left in (old, _beside(folder, "graph")):
        shutil.rmtree(left, ignore_errors=True)


def edge_config(contract: EmbeddingContract, quantization: Quantization) -> edge.EdgeConfig:
    """Return the configuration with which a shard is created and its graph built."""
    quantizations: dict[str, Any] = {
        "none": None,
        "scalar": edge.ScalarQuantizationConfig(edge.ScalarType.Int8, memory=edge.Memory.Cold),
        "binary": edge.BinaryQuantizationConfig(memory=edge.Memory.Cold),
    }
    vectors = edge.EdgeVectorParams(
        contract.dimension,
        DISTANCES[contract.distance],
        quantization_config=quantizations[quantization],
        hnsw_config=edge.HnswIndexConfig(HNSW_M, HNSW_EF, FULL_SCAN_KB, memory=edge.Memory.Cold),
        memory=edge.Memory.Cold,
    )
    return edge.EdgeConfig(vectors=vectors, max_search_threads=1)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f"{folder.name}.{what}")


def main() -> None:
    folder, contract, quantization = sys.argv[1:]
    config = edge_config(
        EmbeddingContract.model_validate_json(contract),
        cast(Quantization, quantization),
    )
    os.nice(POLITENESS)
    shard = edge.EdgeShard.load(folder, config)
    shard.optimize()
    shard.flush()
    shard.close()


if __name__ == "__main__":
    main()
