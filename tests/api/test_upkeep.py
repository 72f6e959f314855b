"""Check and repair over HTTP and by the command line; what is partial or does not match is named,
and answers say so."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from aiohttp import web
from fastapi import Request

from service import checks
from service.api.wire import TOLD_S, followed
from service.client import Client
from service.core.concurrency import closing, emitted
from service.core.errors import RevelatorError, StoreError, UnknownCollection
from service.core.progress import Follow
from service.retrieval.collections import catalog
from service.retrieval.collections.catalog import Collections
from service.retrieval.reports import CollectionReport
from tests.api.test_bad_input import check_problem
from tests.api.test_collections import NDJSON, NORMA, TEXT, add, put, stored
from tests.support.live import Live
from tests.support.stub_server import stub_server


def collections_of(service: Live) -> Collections:
    found: Collections = service.app.state.runtime.retrieval.collections
    return found


async def lose_a_vector(service: Live) -> None:
    collection = await collections_of(service).get("mine")
    await collection.dense.delete(["n"])


async def test_check_and_repair(mine: Live) -> None:
    await add(mine, [NORMA])
    await lose_a_vector(mine)
    response = await mine.get("/collections/mine/check")
    report = response.json()
    assert (response.status, report["passages"], report["vectors"]) == (200, 1, 0)
    assert [(each["kind"], each["ids"]) for each in report["findings"]] == [("lacking", ["n"])]
    report = (await mine.post("/collections/mine/repair")).json()
    assert (report["vectors"], report["left"]) == (1, [])
    assert report["done"] == ["passages embedded: 1", "manifest updated"]
    for accept in ("application/json", "text/event-stream"):
        response = await mine.get("/collections/none/check", headers={"Accept": accept})
        check_problem(response, 404, "not-found")


@pytest.mark.parametrize(
    ("failure", "told_of_it"),
    [
        (None, ""),
        (StoreError("the disk is full"), "the disk is full; run it again"),
        (UnknownCollection("c", ["of another tenant"]), r"there is no collection 'c'\Z"),
        (KeyError("/secret/path"), "An unexpected error occurred"),
    ],
)
async def test_the_client_follows_what_the_server_tells(
    failure: Exception | None, told_of_it: str
) -> None:
    async def work(follow: Follow) -> CollectionReport:
        for done in (0, 50, 100):
            follow("repairing", done, 100)
            await anyio.sleep(2 * TOLD_S)
        if failure:
            raise failure
        return CollectionReport(collection="c", passages=7)

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": request.headers["Accept"]})
        await response.prepare(request)
        await response.write(b": ping\n\n")
        await followed(work, Request({"type": "http"}), response.write)
        return response

    told: list[tuple[str, int, int]] = []
    async with (
        stub_server(serve) as address,
        Client(f"http://{address}", again="run it again") as client,
    ):
        sent = client.repair("c", lambda *now: told.append(now))
        if failure:
            with pytest.raises(RevelatorError, match=told_of_it):
                await sent
        else:
            assert (await sent).passages == 7
    assert told == [("repairing", done, 100) for done in (0, 50, 100)]


async def test_work_that_nobody_follows_any_more_ends() -> None:
    ended = anyio.Event()

    async def work(follow: Follow) -> CollectionReport:
        follow("repairing", 0, 100)
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    request = Request({"type": "http"})
    async with closing(emitted(partial(followed, work, request))) as events:
        assert b"repairing" in await anext(events)
    assert ended.is_set()


async def command(data: Path, *options: str) -> tuple[int, str]:
    line = [sys.executable, "-m", "service", "check", "--data", str(data), *options]
    settings = {"REVELATOR_RETRIEVAL__EMBEDDING_MODEL": "hashing", "PATH": os.environ["PATH"]}

    def run() -> tuple[int, str]:
        root = Path(__file__).parents[2]
        done = subprocess.run(
            line, cwd=root, env=settings, capture_output=True, text=True, timeout=200, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return await anyio.to_thread.run_sync(run)


async def test_the_command_goes_through_the_server_or_works_alone(tmp_path: Path) -> None:
    async with stored(tmp_path) as service:
        service.app.state.runtime.retrieval.directory.set_url(service.url)
        await put(service)
        await add(service, [NORMA])
        await lose_a_vector(service)
        code, text = await command(tmp_path, "--collection", "mine")
        assert code == 1
        assert "found: passages without a vector: 1 (n" in text
        code, text = await command(tmp_path, "--collection", "mine", "--repair")
        assert code == 0
        assert "done: passages embedded: 1" in text
        await lose_a_vector(service)
    code, text = await command(tmp_path, "--collection", "mine")
    assert code == 1
    code, text = await command(tmp_path, "--collection", "mine", "--repair")
    assert (code, "done: passages embedded: 1" in text) == (0, True)
    code, text = await command(tmp_path, "--repair")
    assert (code, "--repair needs a collection" in text) == (2, True)
    code, text = await command(tmp_path, "--collection", "none")
    assert (code, "there is no collection 'none'" in text) == (2, True)


@pytest.fixture(autouse=True)
def _always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "INTERVAL_S", 0.0)


async def ready(service: Live) -> dict[str, Any]:
    service.app.state.readiness._until = 0.0
    response = await service.get("/readyz")
    assert response.status == 200
    body: dict[str, Any] = response.json()
    return body


async def ask(service: Live, **fields: Any) -> dict[str, Any]:
    status, body = await service.ask(
        "Who wrote Norma?", collection="mine", route="single", **fields
    )
    assert status == 200
    return body


async def test_counts_that_differ_are_named_and_told(tmp_path: Path) -> None:
    async with stored(tmp_path) as service:
        service.app.state.runtime.retrieval.directory.set_url(service.url)
        await put(service)
        await add(service, [NORMA])
        assert await ready(service) == {"status": "ok"}
        assert (await ask(service))["degraded"] == []
        collection = await collections_of(service).get("mine")
        await collection.dense.delete(["n"])
        told = (await ready(service))["degraded"]
        assert len(told) == 1
        assert "collection mine: the manifest, tantivy and qdrant_edge count different" in told[0]
        assert (await ask(service))["degraded"] == ["index-incomplete"]
        code, text = await command(tmp_path)
        assert code == 1
        assert "collection mine: the manifest, tantivy and" in " ".join(text.split())
        assert (await service.post("/collections/mine/repair")).status == 200
        assert await ready(service) == {"status": "ok"}
        assert (await ask(service))["degraded"] == []


async def test_a_cut_ingest_is_named_a_running_one_is_not(mine: Live) -> None:
    await add(mine, [NORMA])
    collections = collections_of(mine)
    collection = await collections.get("mine")
    building = collection.manifest.model_copy(update={"state": "building"})
    async with collections.writing("mine"):
        await collection.save(building)
        assert await ready(mine) == {"status": "ok"}
        assert (await ask(mine))["degraded"] == ["index-incomplete"]
    await collection.save(building)
    (told,) = (await ready(mine))["degraded"]
    assert told.startswith("collection mine: an ingest was interrupted")
    assert (await ask(mine))["degraded"] == ["index-incomplete"]
    await add(mine, [NORMA, {"id": "m", "text": "More."}])
    assert await ready(mine) == {"status": "ok"}


async def test_another_embedding_than_the_manifests(mine: Live) -> None:
    await add(mine, [NORMA])
    collection = await collections_of(mine).get("mine")
    other = collection.manifest.embedding.model_copy(update={"query_prefix": "query: "})
    await collection.save(collection.manifest.model_copy(update={"embedding": other}))
    (told,) = (await ready(mine))["degraded"]
    assert "dense search is disabled" in told
    assert "query_prefix" in told
    assert (await ask(mine))["degraded"] == ["dense"]
    fields = {"question": "Who?", "collection": "mine", "route": "single"}
    body = {**fields, "retriever": "dense"}
    response = await mine.post("/answer", json=body)
    problem = check_problem(response, 503, "retrieval-unavailable")
    assert "query_prefix" in problem["detail"]
    url = "/collections/mine/documents"
    more = {"documents": [{"id": "m", "text": "More."}]}
    response = await mine.post(url, json=more)
    assert response.status == 500
    assert "query_prefix" in response.json()["detail"]
    assert (await mine.put(url, json={"documents": [NORMA]})).status == 200
    assert await ready(mine) == {"status": "ok"}
    assert (await ask(mine, retriever="dense"))["degraded"] == []


async def test_documents_are_replaced_at_once(tmp_path: Path) -> None:
    async with stored(tmp_path) as service:
        await put(service, description="kept")
        await add(service, [NORMA, {"id": "old", "text": "Old."}])
        lines = [json.dumps({"id": "new", "text": TEXT}), "{", json.dumps({"text": "Other."})]
        url = "/collections/mine/documents"
        response = await service.put(url, data="\n".join(lines), headers=NDJSON)
        report = response.json()
        assert (response.status, report["indexed"]) == (200, 2)
        assert [failed["index"] for failed in report["failed"]] == [1]
        info = (await service.get("/collections/mine")).json()
        assert (info["documents"], info["description"]) == (2, "kept")
        check_problem(await service.get(f"{url}/old"), 404, "not-found")
        response = await service.put(url, json={"documents": []})
        problem = check_problem(response, 422, "invalid-request")
        assert "is unchanged" in problem["detail"]


async def leftovers(service: Live, count: int) -> None:
    """Waits until a re-index has begun, or has been given up."""
    async with asyncio.timeout(20):
        while len((await collections_of(service).manifest("mine")).leftovers) != count:
            await anyio.lowlevel.checkpoint()


async def test_a_body_that_breaks_off_replaces_nothing(mine: Live) -> None:
    await add(mine, [NORMA])
    before = await collections_of(mine).manifest("mine")
    _, writer = await asyncio.open_connection("127.0.0.1", mine.port)
    line = json.dumps({"id": "new", "text": "New."}).encode() + b"\n"
    writer.write(
        b"PUT /collections/mine/documents HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/x-ndjson\r\nContent-Length: 100000\r\n\r\n" + line
    )
    await writer.drain()
    await leftovers(mine, 1)
    writer.close()
    await leftovers(mine, 0)
    assert await collections_of(mine).manifest("mine") == before
    assert (await ask(mine))["citations"][0]["passage_id"] == "n"


async def test_a_late_probe_takes_no_gateway_out_that_answers(
    mine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(mine, [NORMA])
    await ready(mine)  # opens the collection that probes search
    monkeypatch.setattr(checks, "OPEN_S", 0.0)
    mine.app.state.readiness._until = 0.0
    response = await mine.get("/readyz")
    problem = check_problem(response, 503, "not-ready")
    assert "retrieval: no response within" in problem["detail"]
    monkeypatch.setattr(checks, "LATELY_S", 60.0)
    await ask(mine)
    (told,) = (await ready(mine))["degraded"]
    assert told.startswith("retrieval: no response within")
    monkeypatch.setattr(checks, "LATELY_S", 0.0)
    mine.app.state.readiness._until = 0.0
    assert (await mine.get("/readyz")).status == 503
