"""Clients that leave or say nothing, memory after many large requests, and `/healthz` meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from tests.faults.siege.raw import Held, settled
from tests.faults.siege.world import Gateway, Plan, Row, gateway
from tests.load.__main__ import probed
from tests.load.clients import quantile

LIMITS: Final = ("--limits", "2", "--seconds", "0.1")  # of heads and bodies; of an answer
SETTLE_S: Final = 60.0  # recorded questions go on for 10 s
AT_ONCE: Final = 16
MB: Final = 1_000_000
BOTH: Final = {"Accept": "application/json, text/event-stream"}
LATE_S: Final = 0.1
ASKED: Final = {"question": "Etna?", "route": "single", "collection": "default"}
CALL: Final = {
    "jsonrpc": "2.0", "id": 1, "method": "tools/call",
    "params": {"name": "answer", "arguments": ASKED},
}  # fmt: skip
SIZES: Final = (900_000, 450_000, 200_000, 90_000, 45_000, 20_000)  # characters of a history
FOR_S: Final = 20.0  # of each load under which `/healthz` is asked


async def in_turns(count: int, act: Callable[[int], Awaitable[Any]]) -> None:
    """Call it for each number, `AT_ONCE` at the same time."""
    numbers = iter(range(count))

    async def one() -> None:
        for number in numbers:
            await act(number)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def fill(served: Gateway, count: int, first: int = 0) -> int:
    """Add documents to `default`; the status."""
    await served.send("PUT", "/collections/default", {})
    documents = [
        {"id": f"d{n}", "text": f"Etna {n} is a volcano. " * 8} for n in range(first, first + count)
    ]
    path = "/collections/default/documents"
    return (await served.send("POST", path, {"documents": documents}))[0]


async def leave(port: int, request: bytes, chance: random.Random) -> None:
    """Send it, or a part of it, and go after a moment, with or without a reset."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request[: chance.choice([len(request), chance.randrange(len(request))])])
    await asyncio.sleep(chance.uniform(0, 0.15))
    if chance.random() < 0.5:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def requests(number: int) -> list[bytes]:
    """One of each kind that takes its time."""
    chat = {"model": "revelator", "messages": [{"role": "user", "content": "Etna?"}]}
    document = {"documents": [{"id": f"left{number}", "text": "Etna."}]}
    bodies: list[tuple[str, Any, str]] = [
        ("/answer", ASKED, ""), ("/answer/stream", ASKED, ""),
        ("/answer/stream", ASKED, f"Idempotency-Key: k{number}\r\n"),
        ("/v1/chat/completions", chat | {"stream": True}, ""),
        ("/v1/responses", {"model": "revelator", "input": "Etna?", "stream": True}, ""),
        ("/mcp", CALL, "Accept: application/json, text/event-stream\r\n"),
        ("/collections/default/documents", document, ""),
        ("/collections/default/repair", {}, "Accept: text/event-stream\r\n"),
    ]  # fmt: skip
    made = [b"GET /answer/stream?question=Etna&route=single HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    for path, body, fields in bodies:
        data = json.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        made.append(f"{head}{fields}Content-Length: {len(data)}\r\n\r\n{data}".encode())
    return made


async def connections(plan: Plan, folder: Path) -> list[Row]:
    count, idle = plan.count(5_000), plan.count(600)
    tasks, files = (Row("connections", f"{what} left by those who went", count)
                    for what in ("tasks", "files"))  # fmt: skip
    stay = Row("connections", "idle ones that stay open", idle)
    silent = Row("connections", "files left by idle ones", idle)
    async with gateway(folder / "connections", *LIMITS) as served:
        await fill(served, 20)
        chance = random.Random(f"{plan.seed} connections")

        async def go(number: int) -> None:
            await leave(served.port, chance.choice(requests(number)), chance)

        # What is opened once and kept is not left behind.
        await served.send("POST", "/mcp", CALL, headers=BOTH)
        await in_turns(100, go)
        await asyncio.sleep(12)
        before = await Held.of(served)
        await in_turns(count, go)
        after = await settled(served, before, SETTLE_S)
        tasks.found = max(0, after.tasks - before.tasks)
        files.found = max(0, after.files - before.files)

        async def wait(number: int) -> None:
            """Say nothing, begin a head, or be silent after a response, until the server goes."""
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            writer.write((b"", whole[:20], whole)[number % 3])
            try:
                async with asyncio.timeout(SETTLE_S):
                    await reader.read()
            except TimeoutError:
                stay.add(f"number {number}")
            finally:
                writer.transport.abort()

        await asyncio.gather(*(wait(number) for number in range(idle)))
        silent.found = max(0, (await settled(served, before, SETTLE_S)).files - before.files)
    return [tasks, files, stay, silent]


async def largest_history(served: Gateway) -> list[dict[str, str]]:
    """The largest one that is answered, by its total size."""
    for size in SIZES:
        turns = [{"role": "user", "text": "Etna erupts. " * (size // 260)} for _ in range(20)]
        if (await served.send("POST", "/answer", ASKED | {"history": turns}))[0] == 200:
            return turns
    raise AssertionError("no history is accepted")


async def memory(plan: Plan, folder: Path) -> list[Row]:
    many, large = plan.count(3_000), plan.count(1_000)
    async with gateway(folder / "memory") as served:
        await fill(served, 200)

        async def ask(number: int) -> None:
            status, told = await served.send("POST", "/answer", ASKED)
            assert status == 200, told

        history = await largest_history(served)
        numbers = itertools.count()

        async def ask_large(_: int) -> None:
            number = next(numbers)
            body = ASKED | {"history": history, "question": f"Etna {number}?"}
            key = {"Idempotency-Key": f"large{number}"}
            await served.send("POST", "/answer", body, headers=key)

        await in_turns(100, ask)
        await in_turns(16, ask_large)
        start = served.resident()
        await in_turns(many, ask)
        grown = (served.resident() - start) / MB
        await in_turns(large, ask_large)
        both = (served.resident() - start) / MB
    size = sum(len(turn["text"]) for turn in history) / MB
    return [
        Row("memory", "MB more after questions", many, 60, grown),
        Row("memory", f"MB more, and idempotent ones of {size:.2f} MB", large, 60, both),
    ]


async def health(plan: Plan, folder: Path) -> list[Row]:
    rows = []
    async with gateway(folder / "health") as served:
        for start in range(0, plan.count(20_000), 2_000):
            await fill(served, 2_000, start)
        history = await largest_history(served)
        first = itertools.count(100_000, 500)
        loads: dict[str, Callable[[], Awaitable[Any]]] = {
            "an ingest": lambda: fill(served, 500, next(first)),
            "a repair": lambda: served.send("POST", "/collections/default/repair"),
            "a history at its limit": lambda: served.send(
                "POST", "/answer", ASKED | {"history": history}
            ),
        }
        for name, load in loads.items():
            until = asyncio.get_running_loop().time() + max(5.0, FOR_S * plan.scale)
            async with probed(served) as waits:
                while asyncio.get_running_loop().time() < until:
                    await load()
            row = Row("health", f"/healthz p99 in {name}, s", len(waits), LATE_S)
            # Of a wait in which the server used less CPU, other processes had the rest.
            row.found = quantile([min(wait) for wait in waits], 0.99)
            row.told = [f"{quantile([wait for wait, _ in waits], 0.99):.3f} s by the clock"]
            rows.append(row)
    return rows
