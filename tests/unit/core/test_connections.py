"""Calls that meet a connection which its server closes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from service.core.connections import KEPT_S, Connections, open_session, reason_of
from tests.stubs.closing_server import ClosingServer


class Opened:
    """Connections that are closed at the end, and how often a call was sent again."""

    def __init__(self, **options: Any) -> None:
        self.resent = 0
        self._options = options

    async def __aenter__(self) -> Opened:
        values = {"silence_s": 5, **self._options}
        self.connections = Connections(**values, on_resent=self._count)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connections.aclose()

    async def post(self, server: ClosingServer) -> bytes:
        async with await self.connections.request("POST", server.url, data=b"call") as response:
            return await response.read()

    def _count(self) -> None:
        self.resent += 1


@pytest.mark.parametrize("reset", [False, True])
async def test_a_call_on_a_closed_connection_goes_out_again_on_a_fresh_one(reset: bool) -> None:
    async with ClosingServer(b"x", together=3, reset=reset) as server, Opened() as opened:
        await asyncio.gather(*(opened.post(server) for _ in range(3)))
        assert server.connections == 3

        assert [await opened.post(server) for _ in range(3)] == [b"x"] * 3

    assert opened.resent == 3
    assert server.requests == 3 + 2 * 3


async def test_connections_are_kept_for_less_than_servers_keep_them() -> None:
    async with ClosingServer(b"x", answered=9) as server, Opened() as opened:
        for _ in range(3):
            await opened.post(server)

    assert (server.connections, opened.resent) == (1, 0)
    assert 1 <= KEPT_S <= 4  # uvicorn and llama.cpp's server close after 5 s


async def test_what_closes_every_connection_is_asked_twice_and_no_more() -> None:
    async with ClosingServer(answered=0) as server, Opened() as opened:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await opened.post(server)

    assert server.requests == 2
    assert opened.resent == 1


@pytest.mark.parametrize("last", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_nothing_goes_out_again_once_a_reply_began(last: bytes) -> None:
    async with ClosingServer(answered=0, last=last) as server, Opened() as opened:
        with pytest.raises(aiohttp.ClientError):
            await opened.post(server)

    assert server.requests == 1
    assert opened.resent == 0


async def test_nothing_goes_out_again_to_where_nobody_listens() -> None:
    async with ClosingServer() as gone:
        pass
    async with Opened() as opened:
        with pytest.raises(aiohttp.ClientConnectorError):
            await opened.post(gone)

    assert opened.resent == 0


async def test_nothing_goes_out_again_after_a_silence() -> None:
    async with ClosingServer(together=2) as mute, Opened(silence_s=0.1) as opened:
        with pytest.raises(TimeoutError):
            await opened.post(mute)

    assert mute.requests == 1
    assert opened.resent == 0


async def test_nothing_goes_out_again_after_closing() -> None:
    async with ClosingServer(together=2) as mute, Opened() as opened:
        call = asyncio.create_task(opened.post(mute))
        await mute.asked.wait()
        await opened.connections.aclose()
        call.cancel()
        await asyncio.wait([call])
        with pytest.raises(RuntimeError, match="closed"):
            await opened.post(mute)

    assert mute.requests == 1
    assert opened.resent == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_told_in_plain_words(host: str) -> None:
    async with open_session() as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.get(f"http://{host}:9")
    assert reason_of(caught.value) == "Connection refused"


def test_a_reason_without_words_is_the_errors_name() -> None:
    assert reason_of(ValueError("first\nsecond")) == "first"
    assert reason_of(TimeoutError()) == "TimeoutError"
