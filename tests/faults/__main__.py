"""What each fault does to questions, as one table.

    python -m tests.faults [workers] [elasticsearch] [qdrant] [embeddings] [issuer] [gateway]
        [--servers DIR]

Questions are *answered*; answered without one side and saying so (*degraded*); *refused* with an
error that says why; or *lost*: no answer, no error, and no answer to another try. Nothing may be
lost, and after each fault of a store both stores agree, passage by passage. `DIR` holds the scripts
of the two servers (default: servers/ of REVELATOR_SHARED).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.telemetry.logs import configure_logging
from tests.conftest import shared_root
from tests.faults import elastic_faults, local, qdrant_faults
from tests.faults.names import Names, embedding_world, lose_issuer, lose_workers
from tests.faults.outage import Act, Outage, Service, outage
from tests.faults.proxy import Proxy
from tests.faults.workers import FAULTS, Row, survive

FOR_S = 5.0


@dataclass(frozen=True)
class Counts:
    """`problem`: what was not whole after the fault."""

    answered: int = 0
    degraded: int = 0
    refused: int = 0
    lost: int = 0
    problem: str = ""

    @property
    def good(self) -> bool:
        return not self.lost and not self.problem


def of_outage(told: Outage) -> Counts:
    asked = told.questions
    refused = sum(each.refused for each in asked)
    problem = told.problem or ("" if told.back_s is not None else "answers stay degraded")
    return Counts(
        answered=sum(each.lacking == () for each in asked),
        degraded=sum(bool(each.lacking) for each in asked),
        refused=refused,
        lost=sum(each.lacking is None for each in asked) - refused,
        problem=problem,
    )


def of_row(row: Row) -> Counts:
    torn = sum(not outcome.whole for outcome in row.outcomes)
    return Counts(row.answered, 0, len(row.failed), row.hung + torn)


def show(part: str, fault: str, counts: Counts) -> bool:
    print(
        f"{part:15}{fault:24}{counts.answered:9}{counts.degraded:9}{counts.refused:8}"
        f"{counts.lost:6}  {counts.problem}",
        flush=True,
    )
    return counts.good


async def of_stores(
    part: str, service: Service, faults: Mapping[str, tuple[Act, Act]], names: Iterable[str]
) -> bool:
    """One fault after the other, on the same service and server."""
    good = True
    for name in names:
        breaks, heals = faults[name]
        good = show(part, name, of_outage(await outage(service, breaks, heals, FOR_S))) and good
    return good


async def workers(_: Path) -> bool:
    return all([show("worker", name, of_row(await survive(FAULTS[name]))) for name in FAULTS])


async def elasticsearch(servers: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        world = elastic_faults.elastic_world(servers / "elasticsearch" / "run.sh", Path(folder))
        async with world as (faults, service):
            found = faults.faults(service)
            return await of_stores("Elasticsearch", service, found, found)


async def qdrant(servers: Path) -> bool:
    script, good = servers / "qdrant" / "run.sh", True
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        async with qdrant_faults.qdrant_world(script, Path(folder)) as (faults, service):
            found = faults.faults(service)
            good = await of_stores("Qdrant", service, found, found)
    names = Names()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, names.used():
        made: AbstractAsyncContextManager[tuple[Proxy, Service]]
        made = qdrant_faults.proxied_world(script, Path(folder), names)
        async with made as (proxy, service):
            more = {
                "full disk": qdrant_faults.full_disk(proxy),
                "read-only": qdrant_faults.read_only(proxy),
                "slow": qdrant_faults.slow(proxy),
                "DNS gone": names.lost(proxy),
            }
            return await of_stores("Qdrant", service, more, more) and good


async def embeddings(_: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        async with embedding_world(Path(folder)) as (names, proxy, service):
            faults = {"DNS gone": names.lost(proxy)}
            return await of_stores("embeddings", service, faults, faults)


async def issuer(_: Path) -> bool:
    good = True
    for fault, known in (("DNS gone", True), ("DNS gone from the start", False)):
        met, back = await lose_issuer(16, known=known)
        problem = "" if back else "no question is answered afterwards"
        counts = Counts(met.answered, 0, met.refused, met.lost, problem)
        good = show("OIDC issuer", fault, counts) and good
    return good


async def gateway(_: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        async with local.local_world(Path(folder)) as (machine, service):
            good = await of_stores("gateway", service, machine.faults(), local.NAMES)
            refused = "MB free" in (machine.refusal or "")
            write = Counts(refused=int(refused), lost=int(not refused))
            good = show("gateway", "disk full, a write", write) and good
        good = show("gateway", "DNS of workers gone", of_row(await lose_workers(FOR_S))) and good
        ends = await local.terminate()
        counts = Counts(ends.count("answer"), 0, ends.count("error"), ends.count("cut off"))
        good = show("gateway", "SIGTERM, streams open", counts) and good
        told = await local.kill_and_restart(Path(folder) / "killed")
        answered = sum(each.answered for each in told)
        counts = Counts(answered, lost=len(told) - answered)
        return show("gateway", "SIGKILL and restart", counts) and good


PARTS: Mapping[str, Callable[[Path], Awaitable[bool]]] = {
    "workers": workers,
    "elasticsearch": elasticsearch,
    "qdrant": qdrant,
    "embeddings": embeddings,
    "issuer": issuer,
    "gateway": gateway,
}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--servers", type=Path, default=shared_root() / "servers")
    options: Any = parser.parse_args(given)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    configure_logging("error")
    print(f"{'':15}{'fault':24} answered degraded refused  lost")
    # Each in an event loop of its own: a part replaces what the one before has patched.
    met = [
        asyncio.run(part(options.servers))  # type: ignore[arg-type]
        for name, part in PARTS.items()
        if not options.parts or name in options.parts
    ]
    print("nothing was lost" if all(met) else "something was lost, or is not whole")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
