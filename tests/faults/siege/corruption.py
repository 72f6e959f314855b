"""Files of a collection that are damaged: at rest, or under the server that has them open.

Bits are flipped where a file has contents, files are cut to a half, or removed. An open file is not
cut, because every process that has mapped it ends at the next page.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from tests.faults.siege.kills import words_of
from tests.faults.siege.world import (
    UNEXPECTED,
    Gateway,
    Plan,
    Row,
    copied,
    gateway,
)

AT_ONCE: Final = 10  # damaged collections of one server; another one is whole
WHOLE: Final = "default"
DOCUMENTS: Final = 12
TEXTS: Final = {f"d{n}": " ".join(words_of(f"d{n}", n + 1)) for n in range(DOCUMENTS)}
MANIFEST: Final = "manifest.json"  # which no repair makes again for a collection at rest
LATER: Final = {"later": "Etna later."}


async def make(data: Path) -> Path:
    """A data directory with `AT_ONCE` equal collections and the whole one."""
    async with gateway(data) as served:
        for name in (WHOLE, *(f"c{n}" for n in range(AT_ONCE))):
            documents = [{"id": key, "text": text, "kind": 1} for key, text in TEXTS.items()]
            await served.send("PUT", f"/collections/{name}", {})
            for some in (documents[:8], documents[8:]):
                path = f"/collections/{name}/documents"
                status, told = await served.send("POST", path, {"documents": some})
                assert status == 200, told
        await served.end()
    return data


def damage(folder: Path, kinds: Sequence[str], chance: random.Random) -> str:
    """Damage one file of a collection; what was done to which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    of_words = [path for path in files if "bm25" in path.parts]  # few among the dense store's
    path, kind = chance.choice(chance.choice([files, of_words])), chance.choice(kinds)
    size = path.stat().st_size
    if kind == "remove":
        path.unlink()
    elif kind == "cut":
        os.truncate(path, size // 2)
    else:
        content = path.read_bytes()
        places = [n for n in range(min(size, 200_000)) if content[n]] or [0]
        place = chance.choice(places)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ (1 << chance.randrange(8))]))
        kind = f"flip at {place}"
    return f"{kind}: {path.relative_to(folder)}"


class Damaged:
    """The rows of this part."""

    def __init__(self) -> None:
        whats = (
            "files that check does not name", "errors called unexpected",
            "passages quoted with another text", "other collections lost",
            "panics that outlive their request", "servers that end", "repairs that restore less",
        )  # fmt: skip
        self.rows = [Row("corruption", what, 0) for what in whats]
        (
            self.unnamed, self.raw, self.quoted, self.others, self.panics, self.ended, self.less,
        ) = self.rows  # fmt: skip

    async def look(self, served: Gateway, name: str, told: str) -> None:
        """Use a damaged collection in every way, and then the whole one."""
        asked: list[tuple[str, str, Any]] = [
            ("GET", f"/collections/{name}/check", None),
            (
                "POST",
                f"/collections/{name}/documents",
                {"documents": [{"id": "later", "text": LATER["later"]}]},
            ),
            ("POST", f"/collections/{name}/repair", None),
        ]
        named = False
        for n, (method, path, body) in enumerate(asked):
            status, report = await served.send(method, path, body)
            if n == 0:
                named = self._names(status, report)
            self._raw(report, told)
            for retriever in ("dense", "bm25"):
                status, hits = await served.search(name, retriever)
                self._raw(hits, told)
                self._quotes(hits if status == 200 else {}, told)
        documents = {each: await served.document(name, each) for each in TEXTS}
        for _, passages in documents.values():
            self._quotes(passages, told)
        if not served.alive:
            self.ended.add(f"with {served.process.returncode}: {told}")
            return
        if not named:
            self.unnamed.add(told)
        status, report = await served.send("GET", f"/collections/{name}/check")
        whole = status == 200 and not report["findings"]
        whole = whole and all(status == 200 for status, _ in documents.values())
        if not whole and MANIFEST not in told:
            self.less.add(f"{status} {str(report)[:200]}; {told}")
        await self._whole(served, told)

    async def _whole(self, served: Gateway, told: str) -> None:
        """That the server answers as one whose collections are whole."""
        for retriever in ("dense", "bm25"):
            status, hits = await served.search(WHOLE, retriever)
            if status != 200 or len({each.partition("#")[0] for each in hits}) != DOCUMENTS:
                self.others.add(f"{retriever}: {status} {str(hits)[:200]}; {told}")
        key = {"Idempotency-Key": uuid4().hex}
        body = {"question": "Who?", "route": "direct"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        both = {"Accept": "application/json, text/event-stream"}
        checks = [
            await served.send("POST", "/answer", body, headers=key),
            await served.send("GET", "/answer/stream?question=Who&route=direct"),
            await served.send("POST", "/mcp", call, headers=both),
        ]
        if any(status != 200 for status, _ in checks):
            self.panics.add(f"{[status for status, _ in checks]}: {told}")
            await served.end(signal.SIGKILL)

    @staticmethod
    def _names(status: int, report: Any) -> bool:
        if status == 200:
            return bool(report["findings"])
        return isinstance(report, dict) and not report["type"].endswith(UNEXPECTED)

    def _raw(self, body: Any, told: str) -> None:
        kind = body.get("type", "") if isinstance(body, dict) else body
        if str(kind).endswith((UNEXPECTED, "Internal Server Error")) and told not in self.raw.told:
            self.raw.add(told)

    def _quotes(self, hits: dict[str, str], told: str) -> None:
        whole = TEXTS | LATER
        wrong = [each for each in hits if hits[each] not in whole.get(each.partition("#")[0], "")]
        if wrong and told not in self.quoted.told:
            self.quoted.add(told)


async def corruption(plan: Plan, folder: Path) -> list[Row]:
    damaged = Damaged()
    cases = plan.cases("corruption", 300)
    pristine = await make(folder / "pristine")
    for start in range(0, len(cases), AT_ONCE):
        group = cases[start : start + AT_ONCE]
        data = copied(pristine, folder / f"damaged{start}")
        live = group[0][0] // AT_ONCE % 2 == 1
        places = {f"c{number % AT_ONCE}": (number, chance) for number, chance in group}
        told: dict[str, str] = {}

        def spoil(kinds: Sequence[str]) -> None:
            for name, (number, chance) in places.items():  # noqa: B023 (called in its turn)
                done = damage(data / "collections" / name, kinds, chance)  # noqa: B023
                where = "open" if live else "at rest"  # noqa: B023
                told[name] = f"{where}, {done}; {plan.again('corruption', number)}"  # noqa: B023

        if not live:
            spoil(("flip", "cut", "remove"))
        left = list(places)
        while left:
            async with gateway(data) as served:
                if live and not told:
                    for name in places:
                        await served.search(name, "dense")
                    spoil(("flip", "flip", "remove"))
                while left and served.alive:
                    name = left.pop(0)
                    await damaged.look(served, name, told[name])
    for row in damaged.rows:
        row.count = len(cases)
    return damaged.rows
