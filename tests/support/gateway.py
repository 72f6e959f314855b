"""The service in a process of its own (`tests.load.server`), for tests that kill it and programs
that measure it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 300.0  # on a machine that is busy with other things
PAGE: Final = 4096


@dataclass
class Gateway:
    """A process that serves at `url`."""

    process: asyncio.subprocess.Process
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def resident(self) -> int:
        """Bytes of memory in use."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE

    def send_signal(self, number: signal.Signals) -> None:
        if self.alive:
            self.process.send_signal(number)

    async def left(self, seconds: float) -> str:
        """Wait until the process has ended. Returns what it has printed since it serves."""
        printed, _ = await asyncio.wait_for(self.process.communicate(), seconds)
        return printed.decode()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end. Returns the exit code."""
        self.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), START_S)

    async def ended(self, seconds: float) -> bool:
        """Whether the process ends within so many seconds."""
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            return False
        return True


def cpu_s(pid: int) -> float:
    """What all threads of a process have used that have not ended."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


async def started(
    settings: Mapping[str, Any], *options: str, errors: int | IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    """A process with these settings, by default on a free port."""
    server = {"port": 0, "drain_s": 1.0} | settings.get("server", {})
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.load.server", json.dumps({**settings, "server": server}),
        *options, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT,
    )  # fmt: skip


@asynccontextmanager
async def gateway(
    settings: Mapping[str, Any], *options: str, errors: IO[bytes] | None = None
) -> AsyncIterator[Gateway]:
    """A server, killed at the end. Raises ConnectionError if it does not start."""
    process = await started(settings, *options, errors=errors)
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode().strip()
        if not url:
            raise ConnectionError(f"it ended with {await process.wait()} before it served")
        yield Gateway(process, url)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
