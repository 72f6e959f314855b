"""A proxy before a real Elasticsearch that is too busy for some items of a bulk: nothing is lost,
nothing is written twice."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, web

from service.core.errors import RetrievalFailure
from service.retrieval.base import NOBODY
from service.retrieval.documents import Document, PassageRecord, passages_of
from service.retrieval.stores import elastic_server, elastic_store
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.elastic_store import ElasticStore, create
from tests.support.stub_server import stub_server

NAME = "busy"
COUNT = 200
BUSY = {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "full"}}


class BusyProxy:
    """Passes all on, but refuses a share of each bulk's items."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._random = random.Random(1)
        self.share = 0.0
        self.refused = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        items: list[dict[str, Any] | None] = []
        if request.path.endswith("/_bulk"):
            body, items = self._thinned(body)
            if not body:
                answer: Any = {"errors": True, "items": items}
                return web.json_response(answer, headers={"x-elastic-product": "Elasticsearch"})
        headers = {name: request.headers[name] for name in ("accept", "content-type")
                   if name in request.headers}  # fmt: skip
        url = self._target + request.path_qs
        async with (
            ClientSession() as session,
            session.request(request.method, url, data=body, headers=headers) as answered,
        ):
            content, kept = await answered.read(), answered.headers
        if any(items):
            passed = iter(orjson.loads(content)["items"])
            whole = [item or next(passed) for item in items]
            content = orjson.dumps({"errors": True, "items": whole})
        names = ("content-type", "x-elastic-product")
        return web.Response(
            body=content, status=answered.status, headers={name: kept[name] for name in names}
        )

    def _thinned(self, body: bytes) -> tuple[bytes, list[dict[str, Any] | None]]:
        """What is passed on, and the refusals in their places, None for an item that is."""
        passed: list[bytes] = []
        items: list[dict[str, Any] | None] = []
        lines = iter(body.splitlines())
        for line in lines:
            (action,) = orjson.loads(line)
            item = [line] if action == "delete" else [line, next(lines)]
            if self._random.random() < self.share:
                items.append({action: BUSY})
                self.refused += 1
            else:
                items.append(None)
                passed += item
        return b"".join(line + b"\n" for line in passed), items


@pytest.fixture
async def proxy(elasticsearch_url: str) -> AsyncIterator[BusyProxy]:
    made = BusyProxy(elasticsearch_url)
    async with stub_server(made.handle) as address:
        made.url = f"http://{address}"
        yield made


@pytest.fixture
async def store(proxy: BusyProxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ElasticStore]:
    monkeypatch.setattr(elastic_server, "FIRST_PAUSE_S", 0.001)
    server = ElasticServer(proxy.url, 10.0)
    yield await create(server, NAME, "english", replace=True)
    await elastic_store.drop(server, NAME)
    await server.aclose()


def records(word: str) -> list[PassageRecord]:
    text = " ".join(f"{word} {n} is in a sentence." for n in range(60))  # more than one passage
    documents = [Document(f"d{n}", "", text if n % 3 else word) for n in range(COUNT)]
    return [record for document in documents for record in passages_of(document)]


async def stored(store: ElasticStore) -> list[PassageRecord]:
    return [record async for page in store.records() for record in page]


async def test_what_was_refused_is_sent_again(store: ElasticStore, proxy: BusyProxy) -> None:
    proxy.share = 0.1
    first, second = records("first"), records("second")
    await store.replace([], first)
    assert sorted(await stored(store), key=str) == sorted(first, key=str)
    ids = [f"d{n}" for n in range(COUNT)]
    await store.replace(ids, second)
    assert sorted(await stored(store), key=str) == sorted(second, key=str)
    assert await store.counts(NOBODY) == (COUNT, len(second))
    assert proxy.refused > COUNT // 10


async def test_one_that_stays_busy_is_an_error_and_can_be_written_again(
    store: ElasticStore, proxy: BusyProxy
) -> None:
    proxy.share = 1.0
    wanted = records("word")
    with pytest.raises(RetrievalFailure, match="overloaded"):
        await store.replace([], wanted)
    proxy.share = 0.0
    await store.replace([], wanted)
    assert sorted(await stored(store), key=str) == sorted(wanted, key=str)
