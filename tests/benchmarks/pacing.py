"""How late `token` events reach a raw socket, with an engine that releases one every 50 ms.

    python -m tests.benchmarks.pacing [--streams 4]

Aim: each within 20 ms of its release. Each token is the monotonic time of its release, which all
processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time

from tests.benchmarks.bench_server import PACE_S
from tests.benchmarks.http_support import in_ms, server
from tests.benchmarks.start_latency import question

AIM_S = 0.020


async def read(port: int) -> list[tuple[float, float]]:
    """(released, arrived) of every token of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(question("Who?"))
    found = []
    name = ""
    while name != "done":
        line = (await reader.readline()).decode().strip()
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: ") and name == "token":
            found.append((float(json.loads(line[6:])["text"]), time.monotonic()))
    writer.close()
    return found


async def measure(port: int, streams: int) -> None:
    rows = await asyncio.gather(*(read(port) for _ in range(streams)))
    late = [arrived - released for row in rows for released, arrived in row]
    gaps = [b[1] - a[1] for row in rows for a, b in itertools.pairwise(row)]
    print(
        f"{len(late)} tokens on {streams} streams: late by {in_ms(statistics.median(late))} "
        f"(median), {in_ms(max(late))} (most); {sum(each <= AIM_S for each in late)} of "
        f"{len(late)} within {in_ms(AIM_S)}; gap {in_ms(statistics.median(gaps))} at a pace of "
        f"{in_ms(PACE_S)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=4)
    options = parser.parse_args()
    with server("tests.benchmarks.bench_server", "--paced") as target:
        asyncio.run(measure(target.port, options.streams))


if __name__ == "__main__":
    main()
