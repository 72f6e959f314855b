"""Time to the `start` event against `/healthz`, with 16 streams open.

    python -m tests.benchmarks.start_latency [--samples 400]

Aim: p99 of `start` <= 3 x p99 of `/healthz`. Both are timed on a connection that is already open,
in turn, from the request's last byte to the first byte of the answer that matters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from tests.benchmarks.bench_server import PACE_S
from tests.benchmarks.http_support import in_ms, quantile, server

STREAMS = 16
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def question(text: str) -> bytes:
    body = json.dumps({"question": text, "route": "direct"}).encode()
    head = "POST /answer/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def timed(port: int, request: bytes, until: bytes) -> float:
    """Seconds until `until` has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    writer.write(request)
    await reader.readuntil(until)
    seconds = time.perf_counter() - begin
    writer.close()
    await writer.wait_closed()
    return seconds


async def hold_open(port: int, number: int) -> None:
    """One stream of a token every 50 ms, read as it comes; all are out of step."""
    await asyncio.sleep(number * PACE_S / STREAMS)
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(question("background"))
        while await reader.read(65536):
            pass
        writer.close()


async def measure(port: int, samples: int) -> None:
    background = [asyncio.create_task(hold_open(port, number)) for number in range(STREAMS)]
    await asyncio.sleep(1)
    health, start = [], []
    for number in range(samples + 20):
        pair = (
            await timed(port, HEALTH, b'{"status":"ok"}'),
            await timed(port, question("Who?"), b"event: start\n"),
        )
        if number >= 20:
            health.append(pair[0])
            start.append(pair[1])
        await asyncio.sleep(0.007)
    for task in background:
        task.cancel()
    for share in (0.5, 0.99):
        own, yardstick = quantile(start, share), quantile(health, share)
        print(
            f"p{share * 100:.0f} with {STREAMS} streams open: start {in_ms(own)}, "
            f"/healthz {in_ms(yardstick)}, ratio {own / yardstick:.2f} (aim <= 3 at p99)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=400)
    options = parser.parse_args()
    with server("tests.benchmarks.bench_server", "--paced") as target:
        asyncio.run(measure(target.port, options.samples))


if __name__ == "__main__":
    main()
