"""An attack on real server processes on embedded stores, repeated by seeds.

    python -m tests.faults.siege [PART …] [--scale 0.1] [--seed 1] [--case N]

prints one table and, of what was not right, each case with the command that repeats it. `--case`
runs one case of `kills` or `corruption` alone. The disks of `disk` need the right to mount.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.siege.corruption import corruption
from tests.faults.siege.disk import disk
from tests.faults.siege.kills import kills
from tests.faults.siege.pressure import connections, health, memory
from tests.faults.siege.raw import raw
from tests.faults.siege.world import Part, Plan, Row

PARTS: Mapping[str, Part] = {
    "kills": kills, "corruption": corruption, "connections": connections,
    "memory": memory, "health": health, "raw": raw, "disk": disk,
}  # fmt: skip
MOST_TOLD = 12  # cases of one row


def shown(row: Row) -> str:
    mark = "" if row.good else "  <- too many"
    return f"{row.part:12}{row.what:48}{row.count:7}{row.found:10.4g}{row.limit:8.4g}{mark}"


async def besiege(names: Sequence[str], plan: Plan, folder: Path) -> list[Row]:
    """Run these parts, one after the other."""
    rows: list[Row] = []
    for name in names:
        since = time.monotonic()
        found = await PARTS[name](plan, folder)
        for row in found:
            print(shown(row), flush=True)
        print(f"{name:12}seconds{time.monotonic() - since:58.0f}", flush=True)
        rows += found
    return rows


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="repeat only this case")
    options = parser.parse_args(given)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    plan = Plan(options.seed, options.scale, options.case)
    print(f"{'part':12}{'what':48}{'cases':>7}{'found':>10}{'at most':>8}", flush=True)
    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        rows = asyncio.run(besiege(options.parts or list(PARTS), plan, Path(folder)))
    for row in rows:
        for told in () if row.good else row.told[:MOST_TOLD]:
            print(f"{row.part}, {row.what}: {told}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
