"""The real client against a server that answers as Elasticsearch does when something is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from service.core.errors import (
    ConfigurationError,
    StoreError,
)
from service.retrieval.stores import elastic_server
from service.retrieval.stores.elastic_server import Action, ElasticServer
from tests.support.stub_server import stubbed

ACTIONS: list[Action] = [
    (b'{"index":{"_id":"%d"}}' % n, b'{"n":%d}' % n) for n in range(3)
]  # fmt: skip
OK = {"index": {"status": 201}}
CLASH = {"index": {"status": 400, "error": {"type": "document_parsing_exception",
                                            "reason": "failed to parse field [part]"}}}  # fmt: skip


class Wrong:
    """Gives the answers it is told to, in order, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.product = "Elasticsearch"
        self.bodies: list[bytes] = []
        self.accepted: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.accepted.append(request.headers["accept"])
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        headers = {"x-elastic-product": self.product}
        return web.json_response(body, status=status, headers=headers)

    def ids(self) -> list[int]:
        """How many documents each bulk request had."""
        return [body.count(b'"_id"') for body in self.bodies]


wrong = stubbed(Wrong, "http://user:secret@{}")


@pytest.fixture
async def server(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ElasticServer]:
    monkeypatch.setattr(elastic_server, "FIRST_PAUSE_S", 0.001)
    made = ElasticServer(wrong.url, 0.5)
    yield made
    await made.aclose()


async def test_it_speaks_as_a_client_of_version_8(wrong: Wrong, server: ElasticServer) -> None:
    wrong.answers = [(200, {"count": 1})]
    await server.call(lambda client: client.count(index="i"))
    assert wrong.accepted == ["application/vnd.elasticsearch+json; compatible-with=8"]


async def test_a_url_without_a_port() -> None:
    with pytest.raises(
        ConfigurationError, match="http://es is not a URL with scheme, host and port"
    ):
        await ElasticServer("http://user:secret@es", 1.0).call(lambda client: client.info())


async def test_nothing_is_sent_after_an_item_that_failed(
    wrong: Wrong, server: ElasticServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong.answers = [(200, {"items": [CLASH, OK]})]
    monkeypatch.setattr(elastic_server, "BULK_ACTIONS", 2)
    with pytest.raises(StoreError, match=r"another mapping: failed to parse field"):
        await server.bulk("a", ACTIONS)
    assert len(wrong.bodies) == 1


async def test_a_bulk_to_another_server(wrong: Wrong, server: ElasticServer) -> None:
    for wrong.product, wrong.answers in ("Elasticsearch", [(200, {})]), ("Other", [(200, {})]):
        with pytest.raises(ConfigurationError, match="is not Elasticsearch"):
            await server.bulk("a", ACTIONS)


async def test_bulks_are_bounded(
    wrong: Wrong, server: ElasticServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong.answers = [(200, {"items": [OK, OK]})]
    monkeypatch.setattr(elastic_server, "BULK_ACTIONS", 2)
    await server.bulk("a", ACTIONS)
    monkeypatch.setattr(elastic_server, "BULK_BYTES", 10)
    await server.bulk("a", ACTIONS)
    await server.bulk("a", [])
    assert wrong.ids() == [2, 1, 1, 1, 1]


async def test_another_server_that_lacks_the_path(wrong: Wrong, server: ElasticServer) -> None:
    wrong.answers, wrong.product = [(404, {"detail": "Not Found"})], "another"
    with pytest.raises(ConfigurationError, match="is not Elasticsearch; correct the address"):
        await server.call(lambda client: client.info())
