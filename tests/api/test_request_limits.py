"""What a connection and a web page may do: heads in bounds, no other origin, a body in time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service.api import bodies, connections
from service.api.security import names_this_machine
from tests.api.test_bad_input import check_problem, check_works
from tests.support.live import Live, Raw, answering, config, live

pytestmark = pytest.mark.anyio

HEAD = b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GOOD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def send(service: Live, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send the pieces, and read until the server closes; b"" where it says nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.2)


LARGE = {
    "one header field": HEAD + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",
    "a field without an end": HEAD + b"X-A: " + b"a" * 70_000,
    "many fields": HEAD + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 100) for n in range(1000)),
    "the address": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_head_that_is_too_large_is_refused(name: str) -> None:
    async with live() as service:
        assert (await send(service, LARGE[name])).startswith(b"HTTP/1.1 431 ")
        assert (await send(service, GOOD, LARGE[name], pause=0.05)).count(b"HTTP/1.1 431 ") == 1
        await check_works(service)


async def test_a_large_head_within_the_limit_is_served() -> None:
    async with live() as service:
        field = b"X-A: " + b"a" * 60_000 + b"\r\nConnection: close\r\n\r\n"
        assert (await send(service, GOOD[:-2] + field)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_comes_too_late_is_refused() -> None:
    async with live() as service:
        for pieces in ((HEAD,), (GOOD, HEAD), (b"P",)):
            assert b"HTTP/1.1 408 " in await send(service, *pieces, pause=0.02)
        drip = [HEAD[n : n + 1] for n in range(40)]
        assert (await send(service, *drip, pause=0.02)) != b""
        since = time.monotonic()
        assert await send(service) == b""
        assert time.monotonic() - since < 5
        await check_works(service)


@pytest.mark.usefixtures("impatient")
async def test_what_follows_a_request_does_not_cut_its_stream_short() -> None:
    """Some clients send a line end after a body."""
    async with live(answering(delay=0.3)) as service:
        raw = await Raw.ask(service.port)
        raw.writer.write(b"\r\nGET /heal")
        assert "event: done" in await raw.until("event: done")
        await raw.close()
        await check_works(service)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("body", [b"", b'{"quest'])
async def test_a_body_that_comes_too_late_is_refused(body: bytes) -> None:
    async with live() as service:
        head = HEAD + b"Content-Length: 100\r\nConnection: close\r\n\r\n"
        assert (await send(service, head + body)).startswith(b"HTTP/1.1 408 ")
        await check_works(service)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/answer"), ("POST", "/answer/stream"), ("GET", "/answer/stream?question=Who"),
     ("GET", "/collections"), ("DELETE", "/collections/default"), ("GET", "/metrics")],
)  # fmt: skip
async def test_no_page_of_another_origin_may_read_anything(method: str, path: str) -> None:
    asking = {"Origin": "https://evil.example", "Access-Control-Request-Method": method}
    async with live() as service:
        async with service.http.options(path, headers=asking) as response:
            assert response.status in (405, 404)
            allowed = [name for name in response.headers if name.lower().startswith("access-contr")]
        async with service.http.request(
            method, path, headers={"Origin": "https://evil.example"}, json={"question": "Who?"}
        ) as response:
            allowed += [name for name in response.headers if name.lower().startswith("access-cont")]
        assert allowed == []


async def test_a_browser_that_asks_for_another_site_is_refused() -> None:
    """A stream by GET, or a POST without a body, needs no leave of the server to be sent."""
    there = {"Sec-Fetch-Site": "cross-site"}
    async with live() as service:
        for path in ("/answer/stream?question=Who", "/collections"):
            async with service.http.get(path, headers=there) as response:
                await check_problem(response, 403, "cross-site")
        for own in ("same-origin", "same-site", "none"):
            async with service.http.get(
                "/collections", headers={"Sec-Fetch-Site": own}
            ) as response:
                assert response.status != 403
        async with service.http.get("/healthz", headers=there) as response:
            assert response.status == 200
        await check_works(service)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:8000", True), ("127.0.0.1", True), ("[::1]:8000", True), ("gateway", True),
        ("app.localhost", True), ("evil.example:8000", False), ("evil.example.", False),
        ("[evil", False),
    ],
)  # fmt: skip
def test_names_of_this_machine(host: str, own: bool) -> None:
    assert names_this_machine(host) is own


async def test_another_site_s_name_for_this_machine_is_refused() -> None:
    there = {"Host": "evil.example"}
    key = {"Authorization": "Bearer secret"}
    async with live() as service:
        for method, path in (("GET", "/collections"), ("POST", "/mcp")):
            async with service.http.request(method, path, headers=there) as response:
                await check_problem(response, 403, "cross-site")
        async with service.http.get("/healthz", headers=there) as response:
            assert response.status == 200
    for server, headers in (({"keys": ["secret"]}, key), ({"insecure": True}, {})):
        async with (
            live(settings=config(server=server)) as service,
            service.http.get("/v1/models", headers=there | headers) as response,
        ):
            assert response.status == 200


async def test_a_websocket_is_not_opened() -> None:
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    async with live() as service:
        said = await send(service, GOOD[:-2] + upgrade)
        assert b" 101 " not in said
        await check_works(service)


REFUSED = b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def answered(reader: asyncio.StreamReader) -> int:
    """Read a response, and return its status."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    size = re.search(rb"content-length: *(\d+)", head.lower())
    await reader.readexactly(int(size[1]) if size else 0)
    return int(head.split()[1])


@asynccontextmanager
async def refused(
    service: Live, length: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection whose request was refused before its body was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        writer.write(REFUSED + length + b"\r\n\r\n")
        assert await answered(reader) == 415
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"x"])
async def test_a_refused_body_that_does_not_end_does_not_keep_its_connection(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST_S", 0.3)
    async with live() as service:
        async with refused(service, b"Content-Length: 100") as (reader, writer):
            writer.write(sent)
            async with asyncio.timeout(3):
                assert await reader.read() == b""
        async with refused(service, b"Transfer-Encoding: chunked") as (reader, writer):
            async with asyncio.timeout(3):
                while not (reader.at_eof() or writer.is_closing()):
                    writer.write(b"1\r\nx\r\n")
                    await asyncio.sleep(0.02)
        await check_works(service)


async def test_a_refused_body_that_ends_in_time_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REST_S", 1.0)
    monkeypatch.setattr("service.cli.serve.KEEP_ALIVE_S", 3)
    async with live() as service:
        async with refused(service, b"Content-Length: 4") as (reader, writer):
            writer.write(b"bo")
            await asyncio.sleep(0.05)
            writer.write(b"dy")
            await asyncio.sleep(1.3)
            writer.write(NEXT)
            assert await answered(reader) == 200
        async with refused(service, b"Content-Length: 4") as (reader, writer):
            writer.write(b"body" + NEXT)
            assert await answered(reader) == 200
        async with refused(service, b"Content-Length: 4") as (reader, writer):
            writer.write(b"body")
            async with asyncio.timeout(10):
                assert await reader.read() == b""  # after the time of idle connections


async def test_a_stream_after_a_refused_body_is_longer_than_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.cli.serve.KEEP_ALIVE_S", 0.1)
    body = b'{"question": "Who?"}'
    question = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with (
        live(answering(delay=0.3)) as service,
        refused(service, b"Content-Length: 4") as (reader, writer),
    ):
        writer.write(b"body" + question)
        assert await answered(reader) == 200
