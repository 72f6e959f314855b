"""Uploads that are slow, stall, come at once, or lose their collection on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from service.api import documents
from service.api import wire as bodies
from service.api.documents import BATCH
from service.cli.ingest import Upload
from service.cli.options import IngestOptions
from service.core.errors import InvalidRequest
from service.retrieval.ingest.pipeline import Listener
from tests.api.test_bad_input import check_problem
from tests.api.test_collections import NDJSON, add, stored
from tests.support.live import PATIENCE_S, Live, config, eventually

URL = "/collections/mine/documents"


def line(name: str, number: int, **more: Any) -> bytes:
    document = {"id": f"{name}{number}", "text": f"Text {number} of {name}.", **more}
    return json.dumps(document).encode() + b"\n"


async def until(service: Live, count: int) -> None:
    """Wait until so many documents are in."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            response = await service.get("/collections/mine")
            if response.json()["documents"] >= count:
                return


async def upload(service: Live, lines: AsyncIterator[bytes]) -> dict[str, Any]:
    response = await service.post(URL, data=lines, headers=NDJSON)
    assert response.status == 200, response.text
    report: dict[str, Any] = response.json()
    return report


class Held:
    """An upload of more than a batch, which then waits to be told to go on."""

    def __init__(self, count: int) -> None:
        self.go = asyncio.Event()
        self._count = count

    async def lines(self) -> AsyncIterator[bytes]:
        for number in range(BATCH + 10):
            yield line("held", number)
        await self.go.wait()
        for number in range(BATCH + 10, self._count):
            yield line("held", number)


async def test_a_slow_upload_lets_others_write_and_nothing_is_lost(mine: Live) -> None:
    held = Held(600)

    async def whole() -> AsyncIterator[bytes]:
        for number in range(600):
            yield line("whole", number)
        yield line("held", 5)  # the same document as the other's
        yield line("held", 300, kind="other")  # the other's own comes later, and wins

    slow = asyncio.create_task(upload(mine, held.lines()))
    await until(mine, BATCH)
    async with asyncio.timeout(PATIENCE_S):
        quick = await upload(mine, whole())
        assert (await add(mine, [{"id": "one", "text": "t"}]))["indexed"] == 1
        assert (await mine.delete(f"{URL}/whole7")).status == 204
    assert not slow.done()
    assert (quick["indexed"], quick["unchanged"], quick["failed"]) == (601, 1, [])
    held.go.set()
    report = await slow
    assert (report["indexed"], report["unchanged"], report["failed"]) == (600, 0, [])
    found = (await mine.get("/collections/mine")).json()
    assert (found["documents"], found["state"]) == (1200, "complete")
    assert (await mine.get(f"{URL}/held300")).json()["metadata"] == {}


async def test_an_upload_whose_collection_is_deleted_ends_with_404(mine: Live) -> None:
    held = Held(600)
    request = mine.post(URL, data=held.lines(), headers=NDJSON)
    slow = asyncio.create_task(request)
    await until(mine, BATCH)
    assert (await mine.delete("/collections/mine")).status == 204
    held.go.set()
    check_problem(await slow, 404, "not-found")


async def test_a_client_that_stalls_is_told_what_is_in(
    mine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 1.0)
    problem = check_problem(
        await mine.post(URL, data=Held(300).lines(), headers=NDJSON), 408, "request-timeout"
    )
    assert (
        f"The {BATCH + 10} documents before it are indexed; send the remaining ones."
        in problem["detail"]
    )
    await until(mine, BATCH + 10)
    assert await add(mine, [{"id": "one", "text": "t"}])


async def test_a_batch_is_bounded_in_bytes(mine: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "BATCH_BYTES", 10_000)
    sent = asyncio.Event()

    async def large() -> AsyncIterator[bytes]:
        for number in range(12):
            yield line("large", number, padding="x" * 1_000)
        await sent.wait()

    upload_task = asyncio.create_task(upload(mine, large()))
    await until(mine, 9)
    assert not upload_task.done()
    sent.set()
    assert (await upload_task)["indexed"] == 12


async def state(service: Live) -> tuple[int, str]:
    found = (await service.get("/collections/mine")).json()
    return found["documents"], found["state"]


async def test_an_interrupted_upload_leaves_the_collection_building(mine: Live) -> None:
    cut = asyncio.create_task(upload(mine, Held(600).lines()))
    await until(mine, BATCH)
    assert await state(mine) == (BATCH, "building")
    cut.cancel()
    await until(mine, BATCH + 10)
    assert await state(mine) == (BATCH + 10, "building")
    await upload(mine, lines_of(f"held{number}" for number in range(600)))
    assert await state(mine) == (600, "complete")


async def lines_of(ids: Iterable[str]) -> AsyncIterator[bytes]:
    for name in ids:
        yield json.dumps({"id": name, "text": f"Text of {name}."}).encode() + b"\n"


def upload_to(
    service: Live, file: Path, listener: Listener | None = None, **options: Any
) -> Upload:
    given = IngestOptions(collection="mine", **options)
    return Upload(service.url, [file], given, config(), listener or Listener())


async def test_an_interrupted_ingest_leaves_the_collection_building(tmp_path: Path) -> None:
    """Its requests are whole, each of them; a restart and a deletion change nothing about it."""
    file, steps = tmp_path / "corpus.jsonl", list[int]()
    file.write_bytes(b"".join([part async for part in lines_of(f"d{n}" for n in range(300))]))

    def interrupt(done: int, total: int | None, documents: int) -> None:
        steps.append(documents)
        if len(steps) == 2:
            raise KeyboardInterrupt

    async with stored(tmp_path / "data") as service:
        with pytest.raises(KeyboardInterrupt):
            await upload_to(service, file, Listener(interrupt)).ingest()
        assert await state(service) == (128, "building")
        for path in ("/readyz", "/collections/mine/check"):
            told = (await service.get(path)).text
            assert "an ingest is running, or was interrupted; run it again" in told
        assert (await service.delete(f"{URL}/d1")).status == 204
        assert await state(service) == (127, "building")
    async with stored(tmp_path / "data") as service:
        assert await state(service) == (127, "building")
        report = await upload_to(service, file).ingest()
        assert (report.indexed, report.unchanged) == (173, 127)
        assert await state(service) == (300, "complete")


async def test_an_upload_says_how_words_are_analysed(tmp_path: Path) -> None:
    file = tmp_path / "house.txt"
    file.write_text("Die Häuser am Fluss", encoding="utf-8")
    async with stored(tmp_path / "data") as service:
        for _ in range(2):
            upload = upload_to(service, file, analysis="german")
            await upload.ingest()
        assert (
            len(
                (
                    await service.post(
                        "/search", json={"query": "Haus", "retriever": "bm25", "collection": "mine"}
                    )
                ).json()["passages"]
            )
            == 1
        )
        upload = upload_to(service, file, analysis="french")
        with pytest.raises(InvalidRequest, match="uses the analysis 'german'; to change it"):
            await upload.ingest()


async def test_a_write_whose_client_leaves_before_its_turn_is_not_begun(mine: Live) -> None:
    collections = mine.app.state.runtime.retrieval.collections
    waiting = collections._life.lock("mine").statistics
    async with collections.writing("mine"):
        left = [asyncio.create_task(upload(mine, lines_of([f"d{n}"]))) for n in range(20)]
        stays = asyncio.create_task(upload(mine, lines_of(["stays"])))
        await eventually(lambda: waiting().tasks_waiting == 21)
        for each in left:
            each.cancel()
        await eventually(lambda: waiting().tasks_waiting == 1)
    assert (await stays)["indexed"] == 1
    assert await state(mine) == (1, "complete")
