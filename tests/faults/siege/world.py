"""What the parts share: a server process, its requests, and the rows of the table."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp

from tests.support.gateway import Gateway as Process
from tests.support.gateway import gateway as started
from tests.support.live import parse_sse

TIMEOUT: Final = aiohttp.ClientTimeout(total=40)
NO_ANSWER: Final = 0  # the status of a request whose connection ended
UNEXPECTED: Final = ":internal"  # the end of the problem's type


@dataclass
class Row:
    """One line of the table: of `count` cases, `found` had what may happen `limit` times, or the
    measured value. `told` has the cases, each with what reproduces it."""

    part: str
    what: str
    count: int
    limit: float = 0
    found: float = 0
    told: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.found <= self.limit

    def add(self, told: str) -> None:
        self.found += 1
        self.told.append(told)


@dataclass(frozen=True)
class Plan:
    """`scale`: the share of all cases; `case`: the only one to repeat, by its number."""

    seed: int = 1
    scale: float = 1.0
    case: int | None = None

    def count(self, whole: int) -> int:
        return max(1, round(whole * self.scale))

    def cases(self, part: str, whole: int) -> list[tuple[int, random.Random]]:
        """The numbers of the cases of a part, and the chance of each."""
        numbers = range(self.count(whole)) if self.case is None else [self.case]
        return [(each, random.Random(f"{self.seed} {part} {each}")) for each in numbers]

    def again(self, part: str, case: int) -> str:
        return f"python -m tests.faults.siege {part} --seed {self.seed} --case {case}"


@dataclass
class Gateway(Process):
    """A server process, and a client of it."""

    http: aiohttp.ClientSession

    async def send(self, method: str, path: str, body: Any = None, **given: Any) -> tuple[int, Any]:
        """The status and the body: JSON, or text."""
        try:
            async with self.http.request(method, path, json=body, **given) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return NO_ANSWER, type(error).__name__
        if "json" in response.content_type:
            return response.status, json.loads(text)
        return response.status, text

    async def search(self, name: str, retriever: str) -> tuple[int, Any]:
        """The status, and of all passages that a recorded question finds the texts by id (or the
        body)."""
        asked = {"question": "Etna?", "route": "single", "collection": name, "top_k": 100}
        asked |= {"retriever": retriever}
        key = {"Idempotency-Key": uuid4().hex}
        status, body = await self.send("POST", "/answer/stream", asked, headers=key)
        if status != 200:
            return status, body
        events = parse_sse(body)
        failed = [data["problem"]["status"] for kind, data in events if kind == "error"]
        found = [data["passages"] for kind, data in events if kind == "passages"]
        passages = {each["passage_id"]: each["text"] for some in found for each in some}
        return (failed[0] if failed else 200), passages

    async def document(self, name: str, document_id: str) -> tuple[int, dict[str, str]]:
        """The status, and the texts of its passages by id."""
        status, body = await self.send("GET", f"/collections/{name}/documents/{document_id}")
        passages = body["passages"] if status == 200 else ()
        return status, {each["passage_id"]: each["text"] for each in passages}


@asynccontextmanager
async def gateway(data: Path, *options: str, errors: Path | None = None) -> AsyncIterator[Gateway]:
    """A server on a data directory, killed at the end. Raises ConnectionError if it does not
    start."""
    data.parent.mkdir(exist_ok=True)
    settings = {
        "server": {"max_running": 16}, "data_dir": str(data),
        "retrieval": {"embedding_model": "hashing"},
    }  # fmt: skip
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    with (errors or data.with_name("errors")).open("ab") as log:
        async with (
            started(settings, "--seconds", "0.01", *options, errors=log) as process,
            aiohttp.ClientSession(process.url, connector=connector, timeout=TIMEOUT) as http,
        ):
            yield Gateway(process.process, process.url, http)


def copied(source: Path, target: Path) -> Path:
    """A copy of a data directory whose sparse files stay sparse. What its owner removes meanwhile
    is left out."""
    command = ["cp", "-a", "--sparse=always", source, target]
    plain = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=plain)
    others = [line for line in done.stderr.splitlines() if "No such file or directory" not in line]
    assert not others, done.stderr
    return target


Part = Callable[[Plan, Path], Awaitable[Sequence[Row]]]
