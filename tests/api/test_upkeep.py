"""Check and repair over HTTP, and the command line through the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import anyio.to_thread
import pytest
from aiohttp import web

from service.api.wire import TOLD_S, followed
from service.client import Client
from service.core.errors import StoreError
from service.core.progress import Follow
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.manifest import CollectionReport
from tests.api.test_bad_input import check_problem
from tests.api.test_collections import NORMA, add, put, stored
from tests.support.live import Live
from tests.support.stub_server import stub_server

pytestmark = pytest.mark.anyio


def collections_of(service: Live) -> Collections:
    found: Collections = service.app.state.runtime.stores.collections
    return found


async def lose_a_vector(service: Live) -> None:
    collection = await collections_of(service).get("mine")
    await anyio.to_thread.run_sync(collection.dense.delete, ["n"])


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
    check_problem(await mine.get("/collections/none/check"), 404, "not-found")


async def test_the_progress_of_a_repair_is_streamed_where_that_is_accepted(mine: Live) -> None:
    await add(mine, [NORMA])
    await lose_a_vector(mine)
    accept = {"Accept": "text/event-stream"}
    response = await mine.post("/collections/mine/repair", headers=accept)
    assert response.content_type == "text/event-stream"
    *_, report = response.text.strip().split("\n\n")
    assert report.startswith("event: report\ndata: ")
    done = json.loads(report.partition("data: ")[2])["done"]
    assert done == ["passages embedded: 1", "manifest updated"]
    check_problem(await mine.get("/collections/none/check", headers=accept), 404, "not-found")


@pytest.mark.parametrize("fails", [False, True])
async def test_the_client_follows_what_the_server_tells(fails: bool) -> None:
    async def work(follow: Follow) -> CollectionReport:
        for done in (0, 50, 100):
            follow("repairing", done, 100)
            await anyio.sleep(2 * TOLD_S)
        if fails:
            raise StoreError("the disk is full")
        return CollectionReport(collection="c", passages=7)

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": request.headers["Accept"]})
        await response.prepare(request)
        await response.write(b": ping\n\n")
        async for part in followed(work, "an-id"):
            await response.write(part)
        return response

    told: list[tuple[str, int, int]] = []
    async with (
        stub_server(serve) as address,
        Client(f"http://{address}", again="run it again") as client,
    ):
        sent = client.repair("c", lambda *now: told.append(now))
        if fails:
            with pytest.raises(StoreError, match="the disk is full; run it again"):
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

    async with aclosing(followed(work, "an-id")) as events:
        assert b"repairing" in await anext(events)
    assert ended.is_set()


async def command(data: Path, *options: str) -> tuple[int, str]:
    line = [sys.executable, "-m", "service", "check", "--data", str(data), *options]
    settings = {"REVELATOR_RETRIEVAL__EMBEDDING_MODEL": "hashing", "PATH": os.environ["PATH"]}

    def run() -> tuple[int, str]:
        root = Path(__file__).parents[2]
        done = subprocess.run(
            line, cwd=root, env=settings, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return await anyio.to_thread.run_sync(run)


async def test_the_command_goes_through_the_server_or_works_alone(tmp_path: Path) -> None:
    async with stored(tmp_path) as service:
        service.app.state.runtime.stores.directory.set_url(service.url)
        await put(service)
        await add(service, [NORMA])
        await lose_a_vector(service)
        code, text = await command(tmp_path, "--collection", "mine")
        assert code == 1
        assert f"Using the server at {service.url}." in text
        assert "found: passages without a vector: 1 (n" in text
        code, text = await command(tmp_path, "--collection", "mine", "--repair")
        assert code == 0
        assert "done: passages embedded: 1" in text
        await lose_a_vector(service)
    code, text = await command(tmp_path, "--collection", "mine")
    assert code == 1
    assert "server" not in text
    code, text = await command(tmp_path, "--collection", "mine", "--repair")
    assert (code, "done: passages embedded: 1" in text) == (0, True)
    code, text = await command(tmp_path, "--repair")
    assert (code, "--repair needs a collection" in text) == (2, True)
    code, text = await command(tmp_path, "--collection", "none")
    assert (code, "there is no collection 'none'" in text) == (2, True)
