"""An ingest into a real Elasticsearch that is killed while it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from elasticsearch import AsyncElasticsearch

from service.retrieval.collections import elasticsearch
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.ingest.pipeline import ingest
from service.retrieval.stores import elastic_server
from service.retrieval.stores.elastic_server import ElasticServer
from tests.faults.killing import documents
from tests.unit.retrieval.worlds import contents, opened

PATIENT_S = 20.0
NAME = "out"
CLAIM_S = 2.0  # of the killed ingest: the next waits until it has run out
COUNT = 300  # documents of the killed ingest; more than one batch
BULK = 128  # of its requests


@asynccontextmanager
async def world(data: Path, url: str) -> AsyncIterator[tuple[Backends, Collections]]:
    """Collections on Elasticsearch and qdrant-edge."""
    backends = Backends(ElasticServer(url, PATIENT_S))
    async with opened(data, backends=backends) as collections:
        yield backends, collections
    await backends.aclose()


def run_and_kill(data: Path, url: str, file: Path, bulk: int) -> None:
    """An ingest in a process of its own, which kills itself after its `bulk`-th bulk request."""
    command = [sys.executable, "-m", __name__, str(data), url, str(file), str(bulk)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, timeout=200)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, elasticsearch_url: str) -> dict[str, str]:
    """What the new documents are once they are written without a kill."""
    folder = tmp_path_factory.mktemp("whole")
    new = documents(folder / "new.jsonl", COUNT)

    async def write() -> dict[str, str]:
        async with world(folder / "data", elasticsearch_url) as (backends, collections):
            await backends.drop(NAME)
            await collections.create(NAME)
            await ingest([new], NAME, collections)
            expected, _ = await contents(await collections.get(NAME))
            await collections.delete(NAME)
            return expected

    return anyio.run(write)


# Of a batch that replaces 256 documents: half of the new passages, all, half of the old ones gone,
# all, then the next batch's. Killed after each.
@pytest.mark.parametrize("bulk", [1, 2, 3, 4, 5])
async def test_an_ingest_killed_between_bulks(
    tmp_path: Path, elasticsearch_url: str, whole: dict[str, str], bulk: int
) -> None:
    old = documents(tmp_path / "old.jsonl", COUNT, words=90)
    new = documents(tmp_path / "new.jsonl", COUNT)
    async with world(tmp_path / "killed", elasticsearch_url) as (backends, collections):
        await backends.drop(NAME)
        await collections.create(NAME)
        await ingest([old], NAME, collections)
    await anyio.to_thread.run_sync(run_and_kill, tmp_path / "killed", elasticsearch_url, new, bulk)
    async with world(tmp_path / "killed", elasticsearch_url) as (_, collections):
        assert (await collections.manifest(NAME)).state == "building"
        await ingest([new], NAME, collections)
        bm25, dense = await contents(await collections.get(NAME))
        assert bm25 == dense == whole
        manifest = await collections.manifest(NAME)
        assert (manifest.state, manifest.documents) == ("complete", COUNT)
        assert manifest.passages == len(whole)
        await collections.delete(NAME)


def _main() -> None:
    data, url, file, last = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    send, count = AsyncElasticsearch.bulk, 0

    async def counted(self: AsyncElasticsearch, **request: Any) -> Any:
        nonlocal count
        sent = await send(self, **request)
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return sent

    async def main() -> None:
        async with world(data, url) as (_, collections):
            await ingest([file], NAME, collections)

    elasticsearch.CLAIM_S = CLAIM_S  # type: ignore[misc]
    elastic_server.BULK_ACTIONS = BULK
    AsyncElasticsearch.bulk = counted  # type: ignore[method-assign]
    anyio.run(main)


if __name__ == "__main__":
    _main()
