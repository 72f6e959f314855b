"""Servers of our own. Each is started by a script that prints `ready PORT [GRPC_PORT]`, perhaps
after `pid N`, and that ends with its standard input."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import pytest

from tests.support.signals import suspend

START_S = 400.0  # the first start of all fetches what the server is built of
LEAST_JAVA = 21
SYSTEM_RANDOM = random.SystemRandom()  # processes with one seed would choose the same ports


def can_build() -> bool:
    """Whether there are Maven and a JDK where the script of Elasticsearch looks for one."""
    named = [os.environ.get(name) for name in ("ES_JAVA_HOME", "JAVA_HOME")]
    installed = Path("/usr/lib/jvm").glob("*2[1-9]*")
    homes = [Path(home) for home in named if home] + sorted(installed)
    return shutil.which("mvn") is not None and any(_java(home) >= LEAST_JAVA for home in homes)


def _java(home: Path) -> int:
    """The major version of the JDK in `home`, 0 where there is none."""
    release = home / "release"
    if not (release.is_file() and (home / "bin" / "java").is_file()):
        return 0
    found = re.search(r'JAVA_VERSION="(\d+)', release.read_text())
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class Node:
    """`pid` is the server's own, for signals; `grpc_port` is Qdrant's."""

    url: str
    grpc_port: int
    pid: int
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def freeze(self) -> None:
        suspend(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(30)


def free_port(*, pair: bool = False) -> int:
    """A port of this machine that nobody listens on; with `pair` the next one is free too.

    It is none of those that the system gives to connections and servers: one of them might have
    it before it is used, or while a server that was killed is away.
    """
    while True:
        port = SYSTEM_RANDOM.randrange(10_000, 30_000)
        with socket.socket() as own, socket.socket() as next_one, contextlib.suppress(OSError):
            own.bind(("127.0.0.1", port))
            if pair:
                next_one.bind(("127.0.0.1", port + 1))
            return port


@contextmanager
def running(script: Path, data: Path | None, *arguments: object) -> Iterator[Node]:
    """Without `data` nothing is kept."""
    with tempfile.TemporaryDirectory(prefix=f"{script.parent.name}-") as folder:
        command = [str(script), str(data or Path(folder) / "data"), *map(str, arguments)]
        with (
            (Path(folder) / "log").open("w+b") as log,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
            ) as process,
        ):
            node = None
            try:
                node = _started(process)
                if node is None:
                    log.seek(0)
                    pytest.fail(f"{script} did not start: {log.read()[-2000:].decode()}")
                yield node
            finally:
                if node is not None and process.poll() is None:
                    node.thaw()
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def _started(process: subprocess.Popen[bytes]) -> Node | None:
    """None when it ends or takes too long."""
    assert process.stdout is not None
    deadline, pid = time.monotonic() + START_S, process.pid
    while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = process.stdout.readline()
        match line.split():
            case [b"pid", own]:
                pid = int(own)
            case [b"ready", port, *grpc]:
                grpc_port = int(grpc[0]) if grpc else 0
                return Node(f"http://127.0.0.1:{int(port)}", grpc_port, pid, process)
        if not line:
            break
    return None


def running_elasticsearch(
    script: Path, port: int = 0, data: Path | None = None
) -> AbstractContextManager[Node]:
    """`port` 0 takes a free one."""
    return running(script, data, port)


def running_qdrant(
    script: Path,
    data: Path | None = None,
    ports: tuple[int, int] | None = None,
    settings: Mapping[str, str] | None = None,
) -> AbstractContextManager[Node]:
    """`ports` of REST and gRPC, by default free ones. `settings` are Qdrant's own environment
    variables."""
    port = free_port(pair=True)
    given = (f"{name}={value}" for name, value in (settings or {}).items())
    return running(script, data, *(ports or (port, port + 1)), *given)


class Restarted:
    """A server that is frozen and killed, and comes back: with its data at the same ports, or as
    `start` is told otherwise."""

    def __init__(self, run: Callable[..., AbstractContextManager[Node]]) -> None:
        self._run = run
        self._stack = ExitStack()
        self._start()

    def _start(self, *given: object) -> None:
        self.node = self._stack.enter_context(self._run(*given))

    async def freeze(self) -> None:
        self.node.freeze()

    async def thaw(self) -> None:
        self.node.thaw()

    async def kill(self) -> None:
        await anyio.to_thread.run_sync(self.node.kill)

    async def start(self, *given: object) -> None:
        await anyio.to_thread.run_sync(self._start, *given)

    def close(self) -> None:
        self._stack.close()


@asynccontextmanager
async def restarted(run: Callable[..., AbstractContextManager[Node]]) -> AsyncIterator[Restarted]:
    made = await anyio.to_thread.run_sync(Restarted, run)
    try:
        yield made
    finally:
        await anyio.to_thread.run_sync(made.close)


def restarted_qdrant(script: Path, folder: Path) -> AbstractAsyncContextManager[Restarted]:
    """`start` takes a folder's name, and settings."""
    port = free_port(pair=True)

    def run(
        data: str = "data", settings: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Node]:
        return running_qdrant(script, folder / "qdrant" / data, (port, port + 1), settings)

    return restarted(run)
