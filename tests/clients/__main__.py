"""What works with clients that nobody here wrote, as one table.

    python -m tests.clients [CLIENT …] [--url URL]

asks a server on the embedded default, over the shipped sample. Each cell is checked by what the
client itself returned, and by the questions that the server counted. A CLIENT is a part of a name.
`CLIENTS_PYTHON` and `CLIENTS_NODE` name the environments (`.ci/run` makes them).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.clients.matrix import CELLS, CLIENTS, HEADS, World, row
from tests.live.test_from_nothing import served

QUESTION, ANSWER = "Who directed Once Upon a Time in the West?", "Sergio Leone"
TITLE = "Once Upon a Time in the West"
SLOW = "Who is the director of the film which was directed by the director of Laserblast?"


def show(name: str, found: Mapping[str, str | None]) -> bool:
    told = {cell: "wrong" if found[cell] else "right" for cell in found}
    print(f"{name:28}" + "".join(f"{told.get(cell, '–'):17}" for cell in CELLS), flush=True)
    for cell, wrong in found.items():
        if wrong:
            print(f"    {cell}: {' '.join(wrong.split())[:400]}", flush=True)
    return not any(found.values())


async def table(url: str, wanted: list[str]) -> bool:
    world = World(url, QUESTION, ANSWER, TITLE, SLOW)
    chosen = [each for each in CLIENTS if not wanted or any(w in each.name for w in wanted)]
    print(f"{'':28}" + "".join(f"{head:17}" for head in HEADS), flush=True)
    good = [show(each.name, await row(each, world)) for each in chosen]
    return all(good)


def main() -> None:
    parser = argparse.ArgumentParser(description="clients that nobody here wrote, as one table")
    parser.add_argument("clients", nargs="*")
    parser.add_argument("--url", help="a server that runs; without it one is started")
    options = parser.parse_args()
    if options.url:
        good = asyncio.run(table(options.url, options.clients))
    else:
        with tempfile.TemporaryDirectory() as data, served(Path(data)) as server:
            good = asyncio.run(table(server.url, options.clients))
    sys.exit(not good)


if __name__ == "__main__":
    main()
