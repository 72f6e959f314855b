"""The graph index of the embedded dense store, built outside the shard that is searched.

qdrant-edge builds the graph in one call that holds the interpreter lock, which would stop a server
for seconds to minutes. Therefore a child process builds it, in a copy of the shard's folder:

    python -m service.retrieval.stores.qdrant_edge_graph FOLDER CONTRACT_JSON SETTINGS_JSON

The caller prevents writes meanwhile, and then replaces the folder by the copy. If the process is
killed in between, `recover` removes or restores the folders that are left; both hold the same
vectors.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import qdrant_edge as edge

from service.core.errors import StoreError
from service.core.settings.retrieval import Quantization
from service.retrieval.embedding.contract import EmbeddingContract

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
        await anyio.to_thread.run_sync(shutil.copytree, folder, built)
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
        "scalar": edge.ScalarQuantizationConfig(edge.ScalarType.Int8, always_ram=True),
        "binary": edge.BinaryQuantizationConfig(always_ram=True),
    }
    vectors = edge.EdgeVectorParams(
        contract.dimension,
        DISTANCES[contract.distance],
        quantization_config=quantizations[quantization],
        hnsw_config=edge.HnswIndexConfig(HNSW_M, HNSW_EF, FULL_SCAN_KB),
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
