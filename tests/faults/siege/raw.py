"""Bytes that are no proper request, sent to the service's socket.

Requests are cut, mutated, dripped, pipelined, chunked wrongly, framed twice, or no HTTP; some
connections are reset. Every response must have a documented status, every connection must end by
itself, and afterwards the service has the tasks and files that it had before, and answers.
Heads and bodies have half a second here, so that those that never end can be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.faults.siege.world import Plan, Row
from tests.load.clients import BODY
from tests.load.server import HOW_MANY
from tests.support.gateway import Gateway, gateway

AT_ONCE = 64
HANGS_S = 20.0  # a connection that is open for longer was forgotten: limits end it in 2
STATED = {
    100, 200, 204, 400, 401, 403, 404, 405, 408, 409, 410, 411, 413, 415, 422, 429, 431, 503, 504,
}  # fmt: skip
OPTIONS = ("--seconds", "0.01", "--limits", "0.5")
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")

Pieces = Sequence[bytes]


@dataclass(frozen=True)
class Case:
    """Bytes to send, a piece after the other, and how the client leaves: by waiting for the end, by
    closing its side, or by a reset."""

    kind: str
    pieces: Pieces
    leaving: str = "wait"


def request(path: str = "/answer", body: bytes | None = None, *fields: bytes) -> bytes:
    body = json.dumps(BODY).encode() if body is None else body
    length = b"Content-Length: %d" % len(body)
    lines = [
        b"POST %s HTTP/1.1" % path.encode(),
        b"Host: localhost",
        b"Content-Type: application/json",
    ]
    return b"\r\n".join([*lines, *(fields or (length,)), b"", body])


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = request("/answer/stream")


def cut(draw: random.Random) -> Pieces:
    whole = draw.choice([request(), GET, STREAM])
    return [whole[: draw.randrange(len(whole))]]


def mutated(draw: random.Random) -> Pieces:
    data = bytearray(draw.choice([request(), GET, STREAM]))
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(data))
        change = draw.randrange(3)
        if change == 0:
            data[place] = draw.randrange(256)
        elif change == 1:
            data[place:place] = draw.randbytes(draw.randint(1, 9))
        else:
            del data[place : place + draw.randint(1, 9)]
    return [bytes(data)]


def dripped(draw: random.Random) -> Pieces:
    data = draw.choice([request(), GET, STREAM])
    places = sorted(draw.sample(range(1, len(data)), 5))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def chunked(draw: random.Random) -> Pieces:
    body = json.dumps(BODY).encode()
    good = b"%x\r\n%s\r\n" % (len(body), body)
    sizes = [
        b"zz", b"-1", b"", b"FFFFFFFFFFFFFFFF", b"7FFFFFFF", b"0x5", b"5;" + b"x" * 9000, b" 5",
    ]  # fmt: skip
    chunks = [
        good + b"0\r\n\r\n", good, good[:-3], good + b"0\r\n", good + b"0\r\nX: y\r\n\r\n",
        good + b"\r\n0\r\n\r\n", b"0\r\n\r\n" + good, b"\r\n" * 5,
        b"1\r\n{\r\n" * draw.randint(1, 500) + b"0\r\n\r\n",
        draw.choice(sizes) + b"\r\n" + body + b"\r\n0\r\n\r\n",
    ]  # fmt: skip
    head = request("/answer", b"", b"Transfer-Encoding: chunked")
    return [head, draw.choice(chunks)]


def pipelined(draw: random.Random) -> Pieces:
    some = [request(), GET, STREAM, mutated(draw)[0], request(body=b"{"), b"\r\n"]
    return [b"".join(draw.choices(some, k=draw.randint(2, 6)))]


def framed_twice(draw: random.Random) -> Pieces:
    body = json.dumps(BODY).encode()
    lengths = [b"Content-Length: %d" % n for n in (0, 1, len(body), len(body) + 50, 10**19)]
    fields = draw.choice(
        [
            (lengths[2], b"Transfer-Encoding: chunked"), (lengths[1], lengths[2]), (lengths[3],),
            (lengths[4],), (lengths[0],), (b"Content-Length: -5",), (b"Content-Length: 5, 6",),
            (b"Transfer-Encoding: gzip",), (b"Transfer-Encoding: chunked, identity",),
            (b"Transfer-Encoding : chunked",), (lengths[2], b"Expect: 100-continue"),
        ]
    )  # fmt: skip
    return [request("/answer", body, *fields)]


def no_http(draw: random.Random) -> Pieces:
    return [
        draw.choice(
            [
                b"", b"\r\n" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n",
                b"SSH-2.0-x\r\n", b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
                *(
                    line + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
                    for line in (b"CONNECT x:1", b"OPTIONS *", b"GET http://x/healthz", b"GET x")
                ),
                GET[:-2] + b"X: " + b"\x00" * 9 + b"\r\n\r\n", GET[:-2] + b" folded\r\n\r\n",
                GET[:-2] + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
                GET[:-2] + b"X: y\r\n" * 20_000, draw.randbytes(draw.randint(1, 3000)),
            ]
        )
    ]  # fmt: skip


KINDS: dict[str, Callable[[random.Random], Pieces]] = {
    "cut": cut, "mutated": mutated, "dripped": dripped, "chunked": chunked,
    "pipelined": pipelined, "framed twice": framed_twice, "no HTTP": no_http,
}  # fmt: skip


def cases(count: int, seed: int) -> list[Case]:
    draw = random.Random(seed)
    names = list(KINDS)
    return [
        Case(name, KINDS[name](draw), draw.choice(["wait", "wait", "half", "close", "reset"]))
        for name in (names[number % len(names)] for number in range(count))
    ]


async def send(port: int, case: Case) -> list[int]:
    """The statuses of the responses. Raises TimeoutError for a connection that stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number, piece in enumerate(case.pieces):
            await asyncio.sleep(0.01 if number else 0)
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        if case.leaving == "half" and writer.can_write_eof():
            writer.write_eof()
        if case.leaving == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if case.leaving in ("close", "reset"):
            return []
        async with asyncio.timeout(HANGS_S):
            return [int(status) for status in STATUS.findall(await reader.read())]
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        return []
    finally:
        writer.transport.abort() if case.leaving == "reset" else writer.close()


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    tasks: int
    files: int

    @classmethod
    async def of(cls, target: Gateway) -> Held:
        """By a connection of its own, which has ended when files are counted."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
            http.post(f"{target.url}/answer", json={**BODY, "question": HOW_MANY}) as response,
        ):
            tasks = int((await response.json())["answer"])
        await asyncio.sleep(0.1)
        return cls(tasks, open_files(target))


def open_files(target: Gateway) -> int:
    return len(list(Path(f"/proc/{target.process.pid}/fd").iterdir()))


async def settled(target: Gateway, before: Held, seconds: float = 15.0) -> Held:
    """What is held once it is no more than `before`, or after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        now = await Held.of(target)
        if (now.tasks <= before.tasks and now.files <= before.files) or time.monotonic() > until:
            return now
        await asyncio.sleep(0.2)


async def answers(target: Gateway) -> bool:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{target.url}/answer", json=BODY) as response,
    ):
        await response.read()
        return response.status == 200


async def raw(plan: Plan, folder: Path) -> list[Row]:
    count = plan.count(2_000)
    odd, hung, tasks, files, silent = (
        Row("raw", what, count)
        for what in (
            "statuses that are not documented", "connections that stay open", "tasks left",
            "files left", "questions afterwards without an answer",
        )
    )  # fmt: skip
    free = asyncio.Semaphore(AT_ONCE)
    async with gateway({"server": {"max_running": 64}}, *OPTIONS) as target:
        await answers(target)
        before = await Held.of(target)

        async def one(case: Case) -> None:
            async with free:
                try:
                    statuses = await send(target.port, case)
                except TimeoutError:
                    hung.add(str(case))
                else:
                    for status in set(statuses) - STATED:
                        odd.add(f"{status}: {case}")

        await asyncio.gather(*(one(case) for case in cases(count, plan.seed)))
        after = await settled(target, before)
        tasks.found = max(0, after.tasks - before.tasks)
        files.found = max(0, after.files - before.files)
        silent.found = not await answers(target)
    return [odd, hung, tasks, files, silent]
