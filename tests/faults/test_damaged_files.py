"""Damaged files under a running server: at most their collection is lost, by errors that name them,
and no panic of native code outlives its request."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.core.settings import Settings
from service.core.supervision import MOST_RESTARTS
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.embedding import HashingEmbedder
from tests.faults.test_interrupted_writes import copy_tree
from tests.support.documents import ingest_documents
from tests.support.live import Live, config, live

pytestmark = pytest.mark.anyio

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
CASES = ("bm25/*.term", "bm25/*.store", "bm25/*.idx", "bm25/*.fieldnorm", "dense/**/*.mappings")


def settings(data: Path) -> Settings:
    return config(data_dir=data, retrieval={"embedding_model": "hashing"})


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[Live]:
    async with live(settings=settings(data), own_stores=True) as service:
        yield service


async def add(service: Live, name: str, count: int = 40) -> None:
    async with service.http.put(f"/collections/{name}", json={}) as response:
        assert response.status in {200, 201}, await response.text()
    documents = [
        {"id": f"d{n}", "title": WORDS[n % 8], "text": f"The {WORDS[n % 7]} number {n} is here."}
        for n in range(count)
    ]
    async with service.http.post(
        f"/collections/{name}/documents", json={"documents": documents}
    ) as response:
        assert response.status == 200, await response.text()


def flip(path: Path, seed: int, times: int = 24) -> None:
    """Flip bits among the bytes that are not zero."""
    with path.open("rb") as read:  # no more is used of these small collections
        content, chosen = bytearray(read.read(100_000)), random.Random(seed)
    used = [at for at, byte in enumerate(content) if byte] or [0]
    for at in chosen.sample(used, min(times, len(used))):
        content[at] ^= 1 << chosen.randrange(8)
    with path.open("r+b") as file:  # in place, as the server has it mapped
        file.write(content)


async def search(service: Live, collection: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    return await service.ask("amber number?", route="single", collection=collection, **fields)


@pytest.mark.parametrize("pattern", CASES)
@pytest.mark.parametrize("running", [True, False], ids=["running", "restarted"])
async def test_flipped_bits_cost_one_collection_only(
    tmp_path: Path, pattern: str, running: bool
) -> None:
    async with served(tmp_path) as service:
        await add(service, "whole")
        await add(service, "damaged")
        if running:
            await attacked(service, tmp_path, pattern)
    if not running:
        damage(tmp_path, pattern)
        async with served(tmp_path) as service:
            await attacked(service, tmp_path, None)


def damage(data: Path, pattern: str) -> None:
    paths = [path for path in data.glob(f"collections/damaged/1/{pattern}") if path.is_file()]
    assert paths
    for number, path in enumerate(paths):
        flip(path, number)


async def attacked(service: Live, data: Path, pattern: str | None) -> None:
    if pattern is not None:
        await anyio.to_thread.run_sync(damage, data, pattern)
    for retriever in ("hybrid", "bm25", "dense"):
        recorded = {"Idempotency-Key": retriever}
        body = {"question": "amber number?", "collection": "damaged", "retriever": retriever}
        async with service.http.post("/answer", json=body, headers=recorded) as response:
            assert response.status in {200, 500, 503}, await response.text()
            assert response.content_type.endswith("json")
    for path in ("documents/d3", "check"):
        async with service.http.get(f"/collections/damaged/{path}") as response:
            assert response.status in {200, 404, 500}, await response.text()
            if response.status == 500:
                assert str(data) in (await response.json(content_type=None))["detail"]
    await serves(service)


async def serves(service: Live) -> None:
    """Everything else goes on."""
    for headers in ({}, {"Idempotency-Key": "after"}):
        body = {"question": "amber number?", "collection": "whole", "route": "single"}
        async with service.http.post("/answer", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
    for probe in ("/healthz", "/readyz"):
        async with service.http.get(probe) as response:
            assert response.status == 200, await response.text()


def spoil(path: Path, way: str) -> None:
    if way == "flip":
        flip(path, 1, times=1)
    elif way == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()


@pytest.mark.parametrize("way", ["flip", "cut", "remove"])
async def test_a_check_names_every_damaged_file_and_a_repair_restores_the_collection(
    tmp_path: Path, way: str
) -> None:
    data, name = tmp_path / "data", "c"
    texts = [
        {"id": f"d{n}", "title": WORDS[n % 8], "text": f"{WORDS[n % 7]} {n}."} for n in range(9)
    ]
    collections = Collections(data, HashingEmbedder(), Sample(data / "no-sample"))
    await collections.create(name)
    await ingest_documents(texts, name, collections)
    await collections.aclose()
    files = sorted(path for path in data.rglob("*") if path.is_file() and path.stat().st_size)
    chosen = random.Random(way).sample([path for path in files if path.name != "manifest.json"], 5)
    for number, path in enumerate(chosen):
        copy = tmp_path / f"{number}"
        await anyio.to_thread.run_sync(copy_tree, data, copy)
        spoilt = copy / path.relative_to(data)
        spoil(spoilt, way)
        collections = Collections(copy, HashingEmbedder(), Sample(copy / "no-sample"))
        [finding] = (await collections.check(name)).findings
        assert str(spoilt.parent if spoilt.name == "digests.json" else spoilt) in finding.detail
        assert (await collections.check(name, repair=True)).left == []
        assert (await collections.check(name)).findings == []
        assert len([await collections.document(name, each["id"]) for each in texts]) == 9
        await collections.aclose()
        collections = Collections(copy, HashingEmbedder(), Sample(copy / "no-sample"))
        assert (await collections.check(name)).findings == []
        await collections.aclose()


class Panic(BaseException):
    """As pyo3 makes it: no Exception, of a module that no file has."""


Panic.__module__ = "pyo3_runtime"


async def test_a_panic_anywhere_in_a_recorded_question_ends_that_question_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as service:
        await add(service, "whole")
        answer, runtime = type(service.app.state.runtime).answer, service.app.state.runtime

        async def panic(*_: Any, **__: Any) -> None:
            raise Panic("index out of bounds")

        monkeypatch.setattr(type(runtime), "answer", panic)
        async with service.http.post(
            "/answer", json={"question": "Who?"}, headers={"Idempotency-Key": "panic"}
        ) as response:
            assert response.status == 500
        monkeypatch.setattr(type(runtime), "answer", answer)
        await serves(service)


async def test_a_task_that_fails_whenever_it_is_restarted_fails_the_probe_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as service:
        monkeypatch.setattr("service.core.supervision.PAUSE_S", 0.001)
        tries, given_up = 0, asyncio.Event()

        async def panic() -> None:
            nonlocal tries
            tries += 1
            if tries > MOST_RESTARTS + 1:
                given_up.set()
            raise Panic("poisoned lock")

        service.app.state.tasks.keep("doomed", panic)
        async with asyncio.timeout(5):
            await given_up.wait()
        async with service.http.get("/healthz") as response:
            assert response.status == 503
            assert "'doomed' fails whenever" in await response.text()
