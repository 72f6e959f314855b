"""Faults of the stores' real servers under the running service, as one table.

    python -m tests.benchmarks.backend_faults [--servers DIR] [--short] [--only qdrant]

`DIR` holds qdrant/run.sh and elasticsearch/run.sh (default: servers/ of REVELATOR_SHARED).
Questions come one after the other, probes of /readyz four times a second beside them.

Targets: /readyz 200 with `degraded` in every probe, each under 1 s; the first questions lose at
most the 2 s of a search, from the third on the 95th percentile loses at most 0.1 s; back within 3 s
of the server's return after 10, 60 and 150 s; both stores agree passage by passage, and a write
works. With --short outages last 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.conftest import shared_root
from tests.faults import elastic_faults, qdrant_faults
from tests.faults.outage import Outage, Service, outage

LONG_S = (10.0, 60.0, 150.0)
LONG = ("frozen", "killed")  # faults that are tried for each of them
SHORT_S = 5.0
READY_S, FIRST_S, LATER_S, BACK_S = 1.0, 2.0, 0.1, 3.0
TIMER_S = 0.05  # by which a timer may be late

HEADER = (
    f"{'server':14}{'fault':22}{'for s':>6}  {'readyz':24}{'questions':14}"
    f"{'lost first':>11}{'p95 later':>11}{'back s':>8}  data"
)


def show(server: str, fault: str, for_s: float, told: Outage, harmless: bool) -> bool:
    """Print a line of the table; whether every target was met."""
    probes = told.settled
    good = [probe for probe in probes if probe.status == 200 and bool(probe.degraded) != harmless]
    slowest = max((probe.seconds for probe in probes), default=0.0)
    state = "ok" if harmless else "degraded"
    ready = f"{len(good)}/{len(probes)} {state}, {slowest:.2f} s"
    met = (
        len(good) == len(probes) and slowest < READY_S
        and told.answered == len(told.questions)
        and told.lost_first_s <= FIRST_S + TIMER_S
        and told.lost_later_s <= LATER_S
        and told.back_s is not None and told.back_s <= BACK_S
        and told.problem is None
    )  # fmt: skip
    back = "never" if told.back_s is None else f"{told.back_s:.2f}"
    print(
        f"{server:14}{fault:22}{for_s:6.0f}  {ready:24}"
        f"{f'{told.answered}/{len(told.questions)} in {told.own_s:.3f}':14}"
        f"{told.lost_first_s:11.2f}{told.lost_later_s:11.3f}{back:>8}  "
        f"{told.problem or 'right'}{'' if met else '   MISSED'}",
        flush=True,
    )
    return met


async def run(server: str, module: Any, script: Path, lengths: Sequence[float]) -> bool:
    """Every fault on a service and a server of its own."""
    world = module.qdrant_world if server == "Qdrant" else module.elastic_world
    met = True
    for fault in module.NAMES:
        for for_s in lengths if fault in LONG else lengths[:1]:
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                opened: AbstractAsyncContextManager[tuple[Any, Service]]
                opened = world(script, Path(folder))
                async with opened as (faults, service):
                    breaks, heals = faults.faults(service)[fault]
                    told = await outage(service, breaks, heals, for_s)
            met = show(server, fault, for_s, told, fault in module.HARMLESS) and met
    return met


async def run_full(script: Path, for_s: float) -> bool:
    """Qdrant's disk is full, as a proxy plays it."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        async with qdrant_faults.proxied_world(script, Path(folder)) as (proxy, service):
            told = await outage(service, *qdrant_faults.full_disk(proxy), for_s)
    return show("Qdrant", "full disk", for_s, told, True)


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=Path, default=shared_root() / "servers")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=["qdrant", "elasticsearch"])
    given = parser.parse_args()
    lengths = (SHORT_S,) if given.short else LONG_S
    met = True
    print(HEADER, flush=True)
    for name, server, module in (
        ("qdrant", "Qdrant", qdrant_faults),
        ("elasticsearch", "Elasticsearch", elastic_faults),
    ):
        if given.only in {None, name}:
            script = given.servers / name / "run.sh"
            met = await run(server, module, script, lengths) and met
            if name == "qdrant":
                met = await run_full(script, lengths[0]) and met
    print("every target met" if met else "a target was missed")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
