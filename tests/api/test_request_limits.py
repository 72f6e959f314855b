"""What a connection and a web page may do: heads in bounds, no other origin, a body in time."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.api import wire as bodies
from service.api.wire import zstd
from service.cli import serve as connections
from tests.api.test_bad_input import check_problem, check_works
from tests.support.live import PATIENCE_S, Live, Raw, answering, config, live

HEAD = b"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GOOD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def send(service: Live, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send the pieces, and read until the server closes; b"" where it says nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.5)


LARGE = {
    "one header field": HEAD + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",
    "a field without an end": HEAD + b"X-A: " + b"a" * 70_000,
    "many fields": HEAD + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 100) for n in range(1000)),
    "the address": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_head_that_is_too_large_is_refused(service: Live, name: str) -> None:
    assert (await send(service, LARGE[name])).startswith(b"HTTP/1.1 431 ")
    assert (await send(service, GOOD, LARGE[name], pause=0.05)).count(b"HTTP/1.1 431 ") == 1
    await check_works(service)


async def test_a_large_head_within_the_limit_is_served(service: Live) -> None:
    field = b"X-A: " + b"a" * 60_000 + b"\r\nConnection: close\r\n\r\n"
    assert (await send(service, GOOD[:-2] + field)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_comes_too_late_is_refused(service: Live) -> None:
    for pieces in ((HEAD,), (GOOD, HEAD), (b"P",)):
        assert b"HTTP/1.1 408 " in await send(service, *pieces, pause=0.02)
    drip = [HEAD[n : n + 1] for n in range(40)]
    assert (await send(service, *drip, pause=0.02)) != b""
    since = time.monotonic()
    assert await send(service) == b""
    assert time.monotonic() - since < 9  # elsewhere a head has 10 s
    await check_works(service)


@pytest.mark.usefixtures("impatient")
async def test_what_follows_a_request_does_not_cut_its_stream_short() -> None:
    """Some clients send a line end after a body."""
    async with live(answering(delay=1.2)) as service:
        raw = await Raw.ask(service.port)
        raw.writer.write(b"\r\nGET /heal")
        assert "event: done" in await raw.until("event: done")
        await raw.close()
        await check_works(service)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("body", [b"", b'{"quest'])
async def test_a_body_that_comes_too_late_is_refused(service: Live, body: bytes) -> None:
    head = HEAD + b"Content-Length: 100\r\nConnection: close\r\n\r\n"
    assert (await send(service, head + body)).startswith(b"HTTP/1.1 408 ")
    await check_works(service)


OWN = "http://127.0.0.1:{port}"
# The settings, the headers of the request, and whether it is answered.
SENDERS: list[tuple[dict[str, Any], dict[str, str], bool]] = [
    ({}, {"Sec-Fetch-Site": "cross-site"}, False),
    ({}, {"Sec-Fetch-Site": "same-site"}, False),  # another port of this machine
    ({}, {"Sec-Fetch-Site": "same-origin"}, True),
    ({}, {"Sec-Fetch-Site": "none"}, True),
    ({}, {"Origin": OWN, "Sec-Fetch-Site": "same-origin"}, True),
    ({}, {"Origin": "http://127.0.0.1:1"}, False),
    ({}, {"Origin": "http://localhost:{port}", "Host": "127.0.0.1:{port}"}, False),
    ({}, {"Origin": "http://localhost", "Host": "LOCALHOST:80"}, True),
    ({}, {"Origin": "null"}, False),
    ({}, {"Origin": ""}, False),
    ({}, {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, False),
    ({"keys": ["secret"]}, {"Origin": "https://evil.example"}, False),
    ({"keys": ["secret"]}, {"Host": "qa.example", "Origin": "https://qa.example"}, True),
    ({"public_url": "https://QA.example/app"}, {"Origin": "https://qa.example"}, True),
    ({"public_url": "https://qa.example"}, {"Origin": "https://qa.example:444"}, False),
    ({"cors_origins": ["https://App.example/"]}, {"Origin": "https://app.example",
                                                "Sec-Fetch-Site": "cross-site"}, True),
    ({"cors_origins": ["https://app.example"]}, {"Origin": "https://b.app.example"}, False),
    ({"cors_origins": ["https://app.example"]}, {"Sec-Fetch-Site": "cross-site"}, False),
    ({}, {"Host": "localhost:8000"}, True),
    ({}, {"Host": "[::1]:8000"}, True),
    ({}, {"Host": "127.1.2.3"}, True),
    ({}, {"Host": "gateway"}, False),
    ({}, {"Host": "192.168.0.7:8000"}, False),
    ({}, {"Host": "evil.example."}, False),
    ({}, {"Host": "localhost.evil.example"}, False),
    ({}, {"Host": "[evil"}, False),
    ({"public_url": "http://gateway"}, {"Host": "gateway:8000"}, True),
    ({"public_url": "https://b.example:80/x"}, {"Host": "b.example"}, True),
    ({"public_url": "http://gateway"}, {"Host": "gateway.evil.example"}, False),
    ({"keys": ["secret"]}, {"Host": "evil.example"}, True),
    ({"insecure": True}, {"Host": "evil.example"}, True),
]  # fmt: skip
SETTINGS = dict.fromkeys(json.dumps(server) for server, _, _ in SENDERS)


@pytest.mark.parametrize("server", [json.loads(each) for each in SETTINGS], ids=SETTINGS)
async def test_a_page_of_another_origin_or_name_gets_nothing(server: dict[str, Any]) -> None:
    async with live(settings=config(server=server)) as service:
        for own, headers, answered in SENDERS:
            if own == server:
                await check_sender(service, headers, answered)


async def check_sender(service: Live, headers: dict[str, str], answered: bool) -> None:
    """A stream by GET, or a POST without a body, needs no leave of the server to be sent."""
    sent = {name: value.format(port=service.port) for name, value in headers.items()}
    key = {"Authorization": "Bearer secret"}
    for method, path in (
        ("GET", "/answer/stream?question=Who"), ("POST", "/collections/sample/repair"),
        ("GET", "/v1/models"), ("POST", "/mcp"),
    ):  # fmt: skip
        response = await service.request(method, path, headers=sent | key)
        assert (response.status != 403) is answered, (path, response.text)
        if not answered and not path.startswith("/v1"):
            check_problem(response, 403, "cross-site")
    for path in ("/healthz", "/readyz", "/startupz", "/metrics"):
        assert (await service.get(path, headers=sent)).status == 200
    for path in ("/", "/docs"):  # a link on another page may lead here
        response = await service.get(path, headers=sent)
        assert (response.status == 200) is (answered or "Host" not in headers or
                                            "Origin" in headers)  # fmt: skip


async def test_listed_origins_may_read_and_no_others() -> None:
    settings = config(server={"cors_origins": ["https://app.example"], "keys": ["secret"]})
    asking = {"Access-Control-Request-Method": "POST",
              "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    async with live(settings=settings) as service:
        for origin, allowed in (("https://app.example", True), ("https://evil.example", False)):
            there = {"Origin": origin}
            assert (
                (await service.request("OPTIONS", "/answer", headers=there | asking)).status == 200
            ) is allowed
            response = await service.post(
                "/answer/stream", headers=there | {"X-API-Key": "secret"}, json={"question": "Who?"}
            )
            assert (response.headers.get("Access-Control-Allow-Origin") == origin) is allowed
            assert ("event: done" in response.text) is allowed
    for wrong in ("*", "null", "app.example", "https://app.example/page", "https://"):
        with pytest.raises(ValueError, match="cors_origins"):
            config(server={"cors_origins": [wrong]})


BODY = json.dumps({"question": "Who?"}).encode()
LARGEST = b'{"question": "Who?", "filter": null' + b" " * 990_000 + b"}"
gzipped = partial(gzip.compress, mtime=0)  # the same in each process, as the names of tests are
CODED: list[tuple[str, bytes, int]] = [
    ("gzip", gzipped(BODY), 200),
    ("GZIP", gzipped(BODY), 200),
    ("gzip", gzipped(BODY[:9]) + gzipped(BODY[9:]), 200),
    ("zstd", zstd.compress(BODY), 200),
    ("zstd", zstd.compress(BODY[:9]) + zstd.compress(BODY[9:]), 200),
    ("zstd", zstd.compress(LARGEST), 200),
    ("identity", BODY, 200),
    ("gzip", gzipped(b" " * 1_000_001), 413),
    ("gzip", gzipped(b" " * 50_000_000), 413),
    ("zstd", zstd.compress(b" " * 50_000_000), 413),
    ("gzip", gzipped(BODY)[:-4], 400),
    ("zstd", zstd.compress(BODY)[:-1], 400),
    ("gzip", BODY, 400),
    ("zstd", BODY, 400),
    ("gzip", b"", 400),
    ("zstd", bytes.fromhex("28b52ffd00d8") + BODY, 400),  # a window of 2 GB
    ("br", BODY, 415),
    ("gzip, zstd", gzipped(BODY), 415),
]


@pytest.mark.parametrize(("coding", "body", "status"), CODED)
async def test_a_compressed_body_is_read_within_the_limit(
    coding: str, body: bytes, status: int, service: Live
) -> None:
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    for path in ("/answer", "/v1/chat/completions"):
        told = (await service.post(path, data=body, headers=headers)).status
        assert told == (status if path == "/answer" or status != 200 else 400)
    await check_works(service)


async def test_a_compressed_upload_is_read_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(b'{"id": "d%d", "text": "Etna is a volcano."}\n' % n for n in range(3_000))
    async with live(settings=config(tmp_path), own_stores=True) as service:
        assert (await service.put("/collections/docs")).status == 200
        path = "/collections/docs/documents"
        for coded, encode in (("gzip", gzip.compress), ("zstd", zstd.compress)):
            headers = {"Content-Encoding": coded, "Content-Type": "application/x-ndjson"}
            report = (await service.post(path, data=encode(lines), headers=headers)).json()
            assert report["indexed"] + report["unchanged"] == 3_000
        monkeypatch.setattr(bodies, "MOST_DECODED", 100_000)
        response = await service.put(path, data=encode(lines), headers=headers)
        check_problem(response, 413, "body-too-large")


async def test_old_and_plain_clients_are_answered_in_their_form(service: Live) -> None:
    body = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    for path, end in ((b"/answer/stream", b"event: done"), (b"/answer", b"}")):
        said = await send(service, b"POST %b HTTP/1.0\r\nHost: localhost\r\n%b" % (path, body))
        head, _, rest = said.partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert b" 200 " in head
        assert end in rest[-200:]
    for path in ("/healthz", "/readyz", "/startupz", "/metrics"):
        response = await service.request("HEAD", path)
        assert (response.status, response.content) == (200, b"")
        assert int(response.headers["Content-Length"]) > 0
    for method, path, status in (
        ("GET", "/v1/embeddings", 404), ("POST", "/v1/audio/speech", 404),
        ("GET", "/v1/chat/completions", 405),
    ):  # fmt: skip
        response = await service.request(method, path)
        error = response.json()["error"]
        assert (response.status, error["type"][-6:]) == (status, "_error")
        assert ("Allow" in response.headers) is (status == 405)


async def test_large_responses_are_compressed_where_asked_and_streams_never() -> None:
    question = {"question": "Who?"}
    async with live() as service, aiohttp.ClientSession(service.url, auto_decompress=False) as http:
        for asked, path, coded in (
            ("gzip", "/openapi.json", True), ("identity", "/openapi.json", False),
            ("gzip", "/healthz", False), ("gzip", "/metrics", True),
        ):  # fmt: skip
            async with http.get(path, headers={"Accept-Encoding": asked}) as response:
                content = await response.read()
                assert (response.headers.get("Content-Encoding") == "gzip") is coded
                assert (content[:2] == b"\x1f\x8b") is coded
        headers = {"Accept-Encoding": "gzip"}
        async with http.post("/answer/stream", json=question, headers=headers) as response:
            assert "Content-Encoding" not in response.headers
            assert (await response.read()).startswith(b"event: start")


async def test_the_api_reference_needs_no_other_server(service: Live) -> None:
    page = (await service.get("/docs")).text
    assert "://" not in page
    for path in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (await service.get(path)).status == 200, path


async def test_a_websocket_is_not_opened(service: Live) -> None:
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    said = await send(service, GOOD[:-2] + upgrade)
    assert b" 101 " not in said
    await check_works(service)


REFUSED = b"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answered(reader: asyncio.StreamReader) -> int:
    """Read a response, and return its status."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
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
    service: Live, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST_S", 0.3)
    async with refused(service, b"Content-Length: 100") as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(connections.KEEP_ALIVE_S - 0.5):  # not as an idle connection
            assert await reader.read() == b""
    async with refused(service, b"Transfer-Encoding: chunked") as (reader, writer):
        async with asyncio.timeout(20):  # elsewhere the rest of a body has 30 s
            while not (reader.at_eof() or writer.is_closing()):
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.02)
    await check_works(service)


async def test_a_refused_body_that_ends_in_time_keeps_its_connection(
    service: Live,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REST_S", 1.0)
    monkeypatch.setattr("service.cli.serve.KEEP_ALIVE_S", 3)
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
        async with asyncio.timeout(PATIENCE_S):
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
