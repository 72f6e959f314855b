"""The real client against servers that answer as Qdrant does when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import grpc
import pytest
from aiohttp import web

from service.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
)
from service.retrieval.base import StoreQuery
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection:UserWarning"),
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning"),
]


class Wrong:
    def __init__(self) -> None:
        self.status, self.delay_s = 500, 0.0
        self.keys: list[str | None] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("api-key"))
        await asyncio.sleep(self.delay_s)
        body = {"status": {"error": "for a reason"}, "time": 0.0}
        headers = {"retry-after": "1"} if self.status == 429 else {}
        return web.json_response(body, status=self.status, headers=headers)


@pytest.fixture
async def wrong() -> AsyncIterator[Wrong]:
    made = Wrong()
    runner = web.ServerRunner(web.Server(made.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://:secret@127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def failing(server: QdrantServer, expected: type[RevelatorError], told: str) -> None:
    with pytest.raises(expected, match=told) as caught:
        await server.call(lambda client: client.count("c"))
    assert type(caught.value) is expected
    assert caught.value.__cause__ is not None
    assert "secret" not in caught.value.detail
    await server.aclose()


@pytest.mark.parametrize(
    ("status", "expected", "told"),
    [
        (400, StoreError, "refused the request: .*for a reason"),
        (401, ConfigurationError, "API key"),
        (403, ConfigurationError, "API key"),
        (404, StoreError, "no such collection"),
        (429, BackendUnavailable, r"overloaded \(429\): for a reason"),
        (500, RetrievalFailure, "failed: .*for a reason"),
        (503, BackendUnavailable, r"not to be had \(503\): .*for a reason"),
    ],
)
async def test_each_answer_is_an_error_of_ours(
    wrong: Wrong, status: int, expected: type[RevelatorError], told: str
) -> None:
    wrong.status = status
    await failing(QdrantServer(wrong.url, 1.0, 0), expected, told)
    assert wrong.keys == ["secret"]


async def test_silence_ends_at_the_timeout(wrong: Wrong) -> None:
    wrong.delay_s = 3.0
    await failing(QdrantServer(wrong.url, 0.5, 0), BackendUnavailable, "did not answer in 1 s")
    wrong.delay_s = 0.0


async def test_nobody_there() -> None:
    await failing(
        QdrantServer("http://127.0.0.1:9", 1.0, 9), BackendUnavailable, "cannot be reached"
    )


class Refusing(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A gRPC server that ends every call with one status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code
        self.methods: list[str] = []

    def service(self, details: Any) -> Any:
        self.methods.append(details.method)

        async def refuse(request: bytes, context: Any) -> None:
            await context.abort(self._code, "for a reason")

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.mark.parametrize(
    ("code", "expected", "told"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, StoreError, "refused the request: for a reason"),
        (grpc.StatusCode.UNAUTHENTICATED, ConfigurationError, "API key"),
        (grpc.StatusCode.PERMISSION_DENIED, ConfigurationError, "API key"),
        (grpc.StatusCode.NOT_FOUND, StoreError, "no such collection: for a reason"),
        (grpc.StatusCode.UNAVAILABLE, BackendUnavailable, "cannot be reached"),
        (grpc.StatusCode.INTERNAL, RetrievalFailure, "failed: for a reason"),
    ],
)
async def test_grpc_is_spoken_where_it_is_offered(
    wrong: Wrong, code: grpc.StatusCode, expected: type[RevelatorError], told: str
) -> None:
    handler = Refusing(code)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await failing(QdrantServer(wrong.url, 1.0, port), expected, told)
    finally:
        await server.stop(None)
    assert handler.methods
    assert wrong.keys == []


async def test_a_collection_that_is_gone() -> None:
    server = QdrantServer(":memory:", 1.0)
    contract = EmbeddingContract(model="m", dimension=3)
    store = await anyio.to_thread.run_sync(QdrantStore.create, server, "c", contract)
    with pytest.raises(StoreError, match="ingest it again"):
        await QdrantStore(server, "gone").search(StoreQuery("q", 1, (1.0, 0.0, 0.0)))
    assert await store.search(StoreQuery("q", 0, (1.0, 0.0, 0.0))) == []
    await server.aclose()
