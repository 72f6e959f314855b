"""The client's decisions: what it reads, and what it repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import CapturingLogger

from service import client as client_module
from service.api.wire import encode
from service.client import (
    BACKOFF_S,
    Client,
    _Lost,
    pause,
    read_events,
)
from service.core.errors import (
    ConfigurationError,
    Draining,
    EngineFailure,
    NotFound,
    Overloaded,
    RevelatorError,
    StoreBusy,
    StoreError,
)
from tests.server_nodes import free_port
from tests.support.events import EVENTS
from tests.support.stub_server import stub_server


async def lines(text: str) -> AsyncIterator[bytes]:
    for line in text.splitlines(keepends=True):
        yield line.encode()


def written(name: str, data: str, place: str = "a-1-0") -> str:
    return f"event: {name}\ndata: {data}\nid: {place}\n\n"


async def test_every_type_of_event_is_read_as_it_was_written() -> None:
    text = ": a comment\n\n"
    for event in EVENTS:
        text += encode("a-1", event).decode()
    read = [(place, event) async for place, event in read_events(lines(text))]
    assert read == [(f"a-1-{event.seq}", event) for event in EVENTS]


async def test_what_a_newer_server_adds_is_passed_over() -> None:
    text = written("omen", '{"seq": 0, "ms": 0}')
    text += written("query", '{"seq": 1, "ms": 0, "query": "q", "retriever": "bm25", "new": {}}')
    (read,) = [event async for _, event in read_events(lines(text))]
    assert read.seq == 1


def busy(kind: type[RevelatorError], retry_after: int | None) -> RevelatorError:
    error = kind("busy")
    error.retry_after = retry_after
    return error


@pytest.mark.parametrize(
    ("error", "failures", "left_s", "seconds"),
    [
        (busy(Overloaded, 3), 0, 60.0, 3.0),
        (busy(Draining, 5), 0, 60.0, 5.0),
        (busy(StoreBusy, 5), 0, 60.0, 5.0),
        (busy(Overloaded, 3), 0, 2.9, None),
        (busy(Overloaded, None), 0, 60.0, None),
        (busy(EngineFailure, None), 0, 60.0, None),
        (busy(NotFound, 3), 0, 60.0, None),
        (ConfigurationError("key"), 0, 60.0, None),
        (_Lost("gone"), 1, 0.0, BACKOFF_S),
        (_Lost("gone"), 2, 0.0, 2 * BACKOFF_S),
        (_Lost("gone"), 3, 60.0, None),
    ],
)
def test_what_is_repeated_and_when(
    error: RevelatorError, failures: int, left_s: float, seconds: float | None
) -> None:
    assert pause(error, failures, 2, left_s) == seconds


async def test_a_client_is_opened_first() -> None:
    with pytest.raises(RuntimeError, match="async with Client"):
        await Client().collections()
    with pytest.raises(ValueError, match="not an http"):
        Client("127.0.0.1:8000")


REPORT = {"indexed": 1, "unchanged": 0, "failed": [], "deleted": 0}
GONE = {"type": "urn:revelator:problem:not-found", "title": "Not found", "status": 404,
        "detail": "no such collection", "request_id": "r"}  # fmt: skip
WRITES = GONE | {"type": "urn:revelator:problem:store", "status": 503, "detail": "another writes"}
BUSY = GONE | {"type": "urn:revelator:problem:overloaded", "status": 503, "detail": "busy"}


class Slow:
    """Answers each request with the next reply: a body, a number of seconds to be silent before the
    next reply is sent, or None to close the connection."""

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)
        self.requests = 0

    async def __call__(self, _: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        reply = self._replies.pop(0)
        if isinstance(reply, float):
            await asyncio.sleep(reply)
            reply = self._replies.pop(0)
        if reply is None:
            raise asyncio.CancelledError  # closes the connection without a response
        busy = {"Retry-After": "0"} if reply.get("status") == 503 else {}
        return web.json_response(reply, status=reply.get("status", 200), headers=busy)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SILENCE_S", 0.1)
    monkeypatch.setattr(client_module, "BACKOFF_S", 0.01)


@pytest.mark.usefixtures("quick")
async def test_a_call_may_be_silent_for_longer_than_a_stream() -> None:
    server = Slow(0.4, REPORT)
    async with stub_server(server) as address, Client(f"http://{address}") as client:
        report = await client.add_documents("docs", [{"text": "Norma"}])
    assert (report.indexed, server.requests) == (1, 1)


@pytest.mark.usefixtures("quick")
async def test_a_call_and_a_stream_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CALL_S", 0.2)
    for ask in (Client.collections, lambda client: client.answer("Who?")):
        server = Slow(60.0, GONE)
        async with (
            stub_server(server) as address, Client(f"http://{address}", retries=0) as client
        ):  # fmt: skip
            async with asyncio.timeout(30):
                with pytest.raises(EngineFailure, match="cannot be reached"):
                    await ask(client)
        assert server.requests == 1


async def test_another_writer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once. Other errors of a store are told at once."""
    lost = WRITES | {"status": 500}
    server = Slow(WRITES, WRITES, REPORT, lost, WRITES)
    told = CapturingLogger()
    monkeypatch.setattr(client_module, "_log", told)
    async with stub_server(server) as address, Client(f"http://{address}", again="again") as client:
        await client.add_documents("docs", [{"text": "Norma"}])
        assert {call.args[0] for call in told.calls} == {"waiting for another writer"}
        with pytest.raises(StoreError, match="another writes; again"):
            await client.add_documents("docs", [])
        client.patience_s = -1.0
        with pytest.raises(StoreBusy, match="another writes"):
            await client.add_documents("docs", [])
    assert server.requests == 5


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("replies", [(None, GONE), (None, BUSY, GONE)])
async def test_what_a_lost_call_deleted_is_deleted(replies: tuple[Any, ...]) -> None:
    server = Slow(*replies, *replies)
    async with stub_server(server) as address, Client(f"http://{address}") as client:
        await client.delete_collection("docs")
        await client.delete_document("docs", "n/1")
    assert server.requests == 2 * len(replies)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("replies", [(GONE,), (BUSY, GONE)])
async def test_what_no_call_deleted_was_not_there(replies: tuple[Any, ...]) -> None:
    server = Slow(*replies)
    async with stub_server(server) as address, Client(f"http://{address}") as client:
        with pytest.raises(NotFound):
            await client.delete_collection("docs")
    assert server.requests == len(replies)


@pytest.mark.usefixtures("quick")
async def test_a_call_that_was_not_sent_deleted_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(client_module, "BACKOFF_S", 0.5)
    async with Client(f"http://127.0.0.1:{port}") as client:
        deleting = asyncio.create_task(client.delete_collection("docs"))
        await asyncio.sleep(0.1)
        async with stub_server(Slow(GONE), port):
            with pytest.raises(NotFound):
                await deleting
