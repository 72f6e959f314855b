"""An Elasticsearch of our own, started by a script that prints `ready PORT` and ends with its
standard input."""

from __future__ import annotations

import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

START_S = 300.0  # the first start of all builds it


@dataclass(frozen=True)
class Node:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_elasticsearch(script: Path, port: int = 0, data: Path | None = None) -> Iterator[Node]:
    """`port` 0 takes a free one; without `data` nothing is kept."""
    with tempfile.TemporaryDirectory(prefix="elasticsearch-") as folder:
        command = [str(script), str(data or Path(folder) / "data"), str(port)]
        with (
            (Path(folder) / "log").open("w+b") as log,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            ) as process,
        ):
            try:
                served = _ready(process)
                if served is None:
                    log.seek(0)
                    pytest.fail(f"{script} did not start: {log.read()[-2000:].decode()}")
                yield Node(f"http://127.0.0.1:{served}", process)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def _ready(process: subprocess.Popen[bytes]) -> int | None:
    """The port, None when it ends or takes too long."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_S
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            break
        line = process.stdout.readline()
        if line.startswith(b"ready "):
            return int(line.split()[1])
        if not line:
            break
    return None
