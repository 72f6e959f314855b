"""What can happen to a gateway by itself: its disk, its clock, and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import aiohttp

from service.core import files
from tests.faults.outage import Service, served
from tests.faults.proxy import Act, changed
from tests.live.test_stopping import body_of, serve, words
from tests.load.gateways import Told, insist
from tests.server_nodes import free_port
from tests.support.live import Raw

START_S: Final = 60.0  # in which a gateway is back
DAY_S: Final = 86_400.0
NAMES: Final = ("disk full", "clock a day ahead", "clock a day back")
STREAMS: Final = 8
DIRECT: Final = {"question": "Who?", "route": "direct"}


class Machine:
    """The disk and the clock, as this process sees them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.full = False
        self.ahead_s = 0.0
        self.refusal: str | None = None

    @contextmanager
    def seen(self) -> Iterator[None]:
        statvfs, clock = os.statvfs, time.time

        def told() -> float:
            return clock() + self.ahead_s

        def look(path: Any) -> Any:
            return SimpleNamespace(f_bavail=0, f_frsize=1) if self.full else statvfs(path)

        with (
            mock.patch.object(files.os, "statvfs", look),
            mock.patch.object(time, "time", told),
        ):
            yield

    def faults(self) -> Mapping[str, tuple[Act, Act]]:
        """What begins and what ends each of `NAMES`."""
        fills, empties = changed(self, full=True)

        async def fill() -> None:
            await fills()
            self.refusal = await self._service.write()

        return {
            "disk full": (fill, empties),
            "clock a day ahead": changed(self, ahead_s=DAY_S),
            "clock a day back": changed(self, ahead_s=-DAY_S),
        }


@asynccontextmanager
async def local_world(folder: Path) -> AsyncIterator[tuple[Machine, Service]]:
    """The service on embedded stores."""
    async with served(folder / "data", "", {}) as service:
        machine = Machine(service)
        with machine.seen():
            yield machine, service


async def terminate() -> list[str]:
    """How each stream ends that is open at SIGTERM."""
    async with serve(*words(80), drain_s=60) as served_by:
        streams = [await Raw.ask(served_by.port, route="direct") for _ in range(STREAMS)]
        heads = [await stream.until("event: token", 30) for stream in streams]
        served_by.send_signal(signal.SIGTERM)
        ends = []
        for head, stream in zip(heads, streams, strict=True):
            events = body_of(head + await stream.rest(60))
            ends.append(events[-2][0] if events[-1][0] == "done" else "cut off")
            await stream.close()
        await served_by.left(30)
    return ends


async def kill_and_restart(data: Path) -> list[Told]:
    """Questions to a gateway that is killed, and started again on the same stores."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as http:
        async with serve(*words(40), data=data, port=port) as first:
            asked = [
                asyncio.create_task(insist(http, [url], DIRECT, START_S)) for _ in range(STREAMS)
            ]
            await asyncio.sleep(0.5)
            await first.end(signal.SIGKILL)
        async with serve(*words(4), data=data, port=port):
            return [await task for task in asked]
