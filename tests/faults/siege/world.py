"""What the parts share: a server process, its requests, and the rows of the table."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp

from tests.benchmarks.http_support import ServerProcess
from tests.support.live import parse_sse

ROOT: Final = Path(__file__).parents[3]
START_S: Final = 300.0  # on a machine that is busy with other things
TIMEOUT: Final = aiohttp.ClientTimeout(total=40)
ENGINE: Final = ("--running", "16", "--seconds", "0.01")
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


class Gateway(ServerProcess):
    """A server process, and a client of it."""

    def __init__(
        self, process: asyncio.subprocess.Process, url: str, http: aiohttp.ClientSession
    ) -> None:
        self.process, self.url, self.pid, self.http = process, url, process.pid, http
        self.port = int(url.rsplit(":", 1)[1])

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ended(self, wait_s: float = 1.0) -> bool:
        """Whether the process ends within so many seconds."""
        try:
            await asyncio.wait_for(self.process.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    async def kill(self) -> None:
        if self.alive:
            self.process.kill()
        await self.process.wait()

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
    with (errors or data.with_name("errors")).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.load.server", *ENGINE, "--data", str(data), *options,
            stdout=subprocess.PIPE, stderr=log, cwd=ROOT,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode().strip()
        if not url:
            raise ConnectionError(f"it ended with {await process.wait()} before it served")
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(url, connector=connector, timeout=TIMEOUT) as http:
            yield Gateway(process, url, http)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def stop(served: Gateway) -> None:
    """End it in order."""
    served.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(served.process.wait(), START_S)


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
