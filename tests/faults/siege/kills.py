"""kill -9 amid writes, deletions, replacements and repairs of three collections.

A life is one data directory whose server is killed `KILLS` times: at a random time, or at its n-th
durable operation. Whenever it is started again, each document must be as last acknowledged, or as
it was to be by a request that was not answered.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any, Final

from tests.faults.siege.world import NO_ANSWER, Gateway, Plan, Row, gateway

KILLS: Final = 10  # of one life
NAMES: Final = {"default": 12, "few": 2, "many": 24}  # collections, and how many ids are in use
WORD: Final = re.compile(r"\w+")
ABSENT: Final = 0  # the version of a document that is not there
REFUSED_S: Final = 2.5  # in which the n-th operation comes, or the process is killed anyway


def words_of(document_id: str, version: int) -> list[str]:
    """The text of a version, which no other has; some are cut into several passages."""
    return ["Etna", *(f"{document_id}v{version}w{n}" for n in range(3 + version * 37 % 300))]


class Ledger:
    """Of each document of a collection, the versions that it may have; and who changes them."""

    def __init__(self, name: str, size: int, chance: random.Random, fresh: Iterable[int]) -> None:
        self.name, self._chance, self._fresh = name, chance, iter(fresh)
        self.may: dict[str, set[int]] = {f"{name}{n}": {ABSENT} for n in range(size)}
        self.lost: list[str] = []
        self._path = f"/collections/{name}/documents"

    async def go_on(self, served: Gateway) -> None:
        """Change documents until the server ends."""
        actions: list[Callable[[Gateway], Awaitable[int]]] = [
            self._write, self._write, self._write, self._delete, self._delete, self._clear,
            self._replace, self._repair,
        ]  # fmt: skip
        while await self._chance.choice(actions)(served) != NO_ANSWER:
            pass

    def _batch(self, most: int) -> tuple[dict[str, int], dict[str, Any]]:
        ids = self._chance.sample(list(self.may), self._chance.randint(1, min(most, len(self.may))))
        versions = {each: next(self._fresh) for each in ids}
        documents = [{"id": e, "text": " ".join(words_of(e, v))} for e, v in versions.items()]
        return versions, {"documents": documents}

    async def _write(self, served: Gateway) -> int:
        return await self._change(served, "POST", self._path, *self._batch(8))

    async def _replace(self, served: Gateway) -> int:
        versions, body = self._batch(len(self.may))
        return await self._change(
            served, "PUT", self._path, dict.fromkeys(self.may, ABSENT) | versions, body
        )

    async def _delete(self, served: Gateway) -> int:
        return await self._without(served, self._chance.choice(list(self.may)))

    async def _clear(self, served: Gateway) -> int:
        """Delete one document after the other, to the last."""
        for each in list(self.may):
            if await self._without(served, each) == NO_ANSWER:
                return NO_ANSWER
        return 204

    async def _without(self, served: Gateway, each: str) -> int:
        return await self._change(served, "DELETE", f"{self._path}/{each}", {each: ABSENT})

    async def _repair(self, served: Gateway) -> int:
        return (await served.send("POST", f"/collections/{self.name}/repair"))[0]

    async def _change(
        self, served: Gateway, method: str, path: str, versions: dict[str, int], body: Any = None
    ) -> int:
        for each, version in versions.items():
            self.may[each].add(version)
        status, told = await served.send(method, path, body)
        if status == 404 and all(ABSENT not in self.may[each] - {ABSENT} for each in versions):
            self.lost += [each for each in versions if len(self.may[each]) > 1]
        if status in (200, 204, 404):
            assert not (isinstance(told, dict) and told.get("failed")), told
            self.may |= {each: {version} for each, version in versions.items()}
        return status

    async def settle(self, served: Gateway, *, last: bool) -> list[str]:
        """The documents that are not as they may be. After the `last` look they are as they are:
        before it, a deletion that was not answered may still be made."""
        wrong = self.lost
        self.lost = []
        for each, versions in self.may.items():
            status, passages = await served.document(self.name, each)
            found = set(WORD.findall(" ".join(passages.values())))
            match = [v for v in versions if (set(words_of(each, v)) if v else set()) == found]
            if status not in (200, 404) or not match:
                wrong.append(f"{each}: {status}, {sorted(found)[1:3]} is none of {versions}")
            if last:
                self.may[each] = {match[0] if match else ABSENT}
        return wrong


class Lives:
    """The rows of this part."""

    def __init__(self) -> None:
        whats = (
            "acknowledged data lost", "ghosts after opening", "hits of another version",
            "collections not to be read", "repairs that leave something",
        )  # fmt: skip
        self.lost, self.ghosts, self.other, self.closed, self.unrepaired = self.rows = [
            Row("kills", what, 0) for what in whats
        ]
        self.other.limit = inf  # it was written, but not acknowledged: it is counted alone

    async def live(self, data: Path, chance: random.Random, again: str) -> None:
        fresh = iter(range(1, 1_000_000))
        ledgers = [Ledger(name, size, chance, fresh) for name, size in NAMES.items()]
        for kill in range(KILLS + 1):
            operation = chance.choice([None, chance.randint(1, 40)])
            options = () if operation is None else ("--die-at", str(operation))
            told = f"kill {kill} of: {again}"
            async with gateway(data, *options) as served:
                for ledger in ledgers:
                    if kill:
                        await self._look(served, ledger, told)
                    else:
                        await served.send("PUT", f"/collections/{ledger.name}", {})
                if kill == KILLS:
                    return
                async with asyncio.TaskGroup() as group:
                    for ledger in ledgers:
                        group.create_task(ledger.go_on(served))
                    if operation is not None:
                        served.send_signal(signal.SIGUSR1)
                    await served.ended(chance.uniform(0.05, 1.5) if not operation else REFUSED_S)
                    await served.end(signal.SIGKILL)
            for row in self.rows:
                row.count += 1

    async def _look(self, served: Gateway, ledger: Ledger, told: str) -> None:
        name = ledger.name
        known: dict[str, set[str]] = {}  # texts, before and after the search, which may mend it

        async def get() -> None:
            for each in ledger.may:
                for passage_id, text in (await served.document(name, each))[1].items():
                    known.setdefault(passage_id, set()).add(text)

        await get()
        status, hits = await served.search(name, "dense")
        if status != 200:
            self.closed.add(f"{name}: {status} {str(hits)[:200]}; {told}")
            hits = {}
        await get()
        for row, found in (
            (self.ghosts, [each for each in hits if each not in known]),
            (
                self.other,
                [each for each in hits if hits[each] not in known.get(each, {hits[each]})],
            ),
        ):
            if found:
                row.add(f"{name}: {len(found)}, such as {found[0]}; {told}")
        wrong = await ledger.settle(served, last=False)
        for method, path in (("POST", "repair"), ("GET", "check")):
            status, report = await served.send(method, f"/collections/{name}/{path}")
            if status != 200 or report["left"] or (path == "check" and report["findings"]):
                self.unrepaired.add(f"{name} {path}: {status} {str(report)[:300]}; {told}")
        for each in wrong + await ledger.settle(served, last=True):
            self.lost.add(f"{name}/{each}; {told}")


async def kills(plan: Plan, folder: Path) -> list[Row]:
    """Two lives at a time."""
    lives, free = Lives(), asyncio.Semaphore(2)

    async def one(case: int, chance: random.Random) -> None:
        again = plan.again("kills", case)
        async with free:
            try:
                await lives.live(folder / f"kills{case}" / "data", chance, again)
            except ConnectionError as error:
                lives.closed.add(f"{error}: {again}")

    await asyncio.gather(*(one(*each) for each in plan.cases("kills", 20)))
    return lives.rows
