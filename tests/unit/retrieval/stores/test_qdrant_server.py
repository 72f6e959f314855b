"""The real client against servers that answer as Qdrant does when something is wrong."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from aiohttp import web

from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
    StoreLost,
)
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.support.stub_server import stubbed

VERSION = {"title": "qdrant", "version": "1.19.0"}


class Wrong:
    """Wrong in what is asked of collection `c`; `told` are its right answers, by path."""

    def __init__(self) -> None:
        self.keys: set[str | None] = set()
        self.paths: list[str] = []
        self.told: dict[str, Any] = {
            "/": VERSION,
            "/collections": {"result": {"collections": [{"name": "c"}]}},
        }
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("api-key"))
        self.paths.append(request.path)
        if request.path in self.told:
            return web.json_response(self.told[request.path])
        body = {"status": {"error": "for a reason"}, "time": 0.0}
        return web.json_response(body, status=500)


wrong = stubbed(Wrong, "http://:secret@{}")


async def failing(server: QdrantServer, expected: type[RevelatorError], told: str) -> None:
    with pytest.raises(expected, match=told) as caught:
        await server.call(lambda client: client.count("c"))
    assert type(caught.value) is expected
    assert caught.value.__cause__ is not None
    assert "secret" not in caught.value.detail
    await server.aclose()


class Refusing(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A gRPC server that ends every call with one status, and a message that repeats what it was
    sent."""

    def __init__(self, code: grpc.StatusCode, details: str = "for a reason") -> None:
        self._code = code
        self._details = details
        self.methods: list[str] = []

    def service(self, details: Any) -> Any:
        self.methods.append(details.method)

        async def answer(request: bytes, context: Any) -> bytes:
            sent = " ".join(f"{name}: {value}" for name, value in context.invocation_metadata())
            await context.abort(self._code, f"{self._details}; {sent}")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def refusing(handler: Refusing) -> AsyncIterator[int]:
    """Its port."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("code", "expected", "told"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, StoreError, "rejected the request: for a reason"),
        (grpc.StatusCode.UNAUTHENTICATED, ConfigurationError, "API key"),
        (grpc.StatusCode.PERMISSION_DENIED, ConfigurationError, "API key"),
        (grpc.StatusCode.NOT_FOUND, StoreLost, "lost a collection: for a reason"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, BackendUnavailable, r"overloaded \(429\)"),
        (grpc.StatusCode.UNAVAILABLE, BackendUnavailable, "cannot be reached"),
        (grpc.StatusCode.INTERNAL, RetrievalFailure, "failed: for a reason"),
    ],
)
async def test_grpc_is_spoken_where_its_port_is_set(
    wrong: Wrong, code: grpc.StatusCode, expected: type[RevelatorError], told: str
) -> None:
    handler = Refusing(code)
    async with refusing(handler) as port:
        await failing(QdrantServer(wrong.url, 1.0, port), expected, told)
    assert handler.methods[-1] == "/qdrant.Points/Count"
    assert "/collections/c/points/count" not in wrong.paths


async def test_check_refuses_a_server_that_is_too_old(wrong: Wrong) -> None:
    server = QdrantServer(wrong.url, 1.0, 0)
    assert await server.check() == "version 1.19.0, REST is used"
    for version in ("1.16", "1.20.0-dev", "dev"):
        wrong.told["/"] = {**VERSION, "version": version}
        assert await server.check() == f"version {version}, REST is used"
    wrong.told["/"] = {**VERSION, "version": "1.15.5"}
    with pytest.raises(ConfigurationError, match=r"is version 1\.15\.5; 1\.16 or newer is needed"):
        await server.check()
    await server.aclose()


async def test_a_full_disk_is_told_from_too_many_requests(wrong: Wrong) -> None:
    """In gRPC both have one code."""
    full = "No space left on device: WAL buffer size exceeds available disk space"
    async with refusing(Refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, full)) as port:
        await failing(QdrantServer(wrong.url, 1.0, port), StoreError, "no space left for writing")


async def test_a_caller_who_leaves_loses_no_client(
    wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is being made in the meantime is kept, and closed with the server."""
    server = QdrantServer(wrong.url, 1.0, 0)
    made: list[Any] = []
    opening, left = server._open, threading.Event()

    def slowly() -> Any:
        left.wait(20)
        made.append(opening())
        return made[-1]

    monkeypatch.setattr(server, "_open", slowly)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await server.connect()
    left.set()
    await server.aclose()
    assert [client._client._closed for client in made] == [True]


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://:secret@qdrant.example:6333", True),
        ("https://:secret@qdrant.example:6333", False),
        ("http://:secret@127.0.0.1:6333", False),
        ("http://qdrant.example:6333", False),
    ],
)
async def test_a_key_that_others_can_read_on_the_way_is_warned_of(
    url: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line of ours; the client's own warning is not shown."""
    logs: list[tuple[str, object]] = []
    log = SimpleNamespace(warning=lambda event, **fields: logs.append((event, fields)))
    monkeypatch.setattr("service.retrieval.stores.qdrant_server._log", log)
    server = QdrantServer(url, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await server._open().close()
    assert [event for event, _ in logs] == ["key_unencrypted"] * warned
    assert "secret" not in str(logs)
