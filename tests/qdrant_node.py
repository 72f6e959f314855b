"""A Qdrant of our own, started by a script that prints `pid N`, then `ready PORT GRPC_PORT`, and
ends with its standard input."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.signals import suspend

START_S = 60.0  # the first start of all unpacks it


@dataclass(frozen=True)
class QdrantNode:
    """`pid` is the server's own, for signals."""

    url: str
    grpc_port: int
    pid: int
    process: subprocess.Popen[str]

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


@contextmanager
def running_qdrant(
    script: Path,
    data: Path | None = None,
    ports: tuple[int, int] = (0, 0),
    settings: Mapping[str, str] | None = None,
) -> Iterator[QdrantNode]:
    """`ports` of REST and gRPC, 0 for free ones; without `data` nothing is kept. `settings` are
    Qdrant's own environment variables."""
    with tempfile.TemporaryDirectory(prefix="qdrant-") as folder:
        command = [str(script), str(data or Path(folder) / "data"), *map(str, ports)]
        command += [f"{name}={value}" for name, value in (settings or {}).items()]
        with (
            (Path(folder) / "log").open("w+") as log,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            node = None
            try:
                node = _started(process)
                if node is None:
                    log.seek(0)
                    pytest.fail(f"{script} did not start: {log.read()[-2000:]}")
                yield node
            finally:
                _end(process, node)


def _started(process: subprocess.Popen[str]) -> QdrantNode | None:
    """None when it ends or takes too long."""
    assert process.stdout is not None
    deadline, pid = time.monotonic() + START_S, 0
    while (left := deadline - time.monotonic()) > 0:
        if not pid and not select.select([process.stdout], [], [], left)[0]:
            break
        words = process.stdout.readline().split()
        if not words:
            break
        if words[0] == "pid":
            pid = int(words[1])
        elif words[0] == "ready":
            return QdrantNode(f"http://127.0.0.1:{words[1]}", int(words[2]), pid, process)
    return None


def _end(process: subprocess.Popen[str], node: QdrantNode | None) -> None:
    assert process.stdin is not None
    if node is not None and process.poll() is None:
        node.thaw()
    process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
