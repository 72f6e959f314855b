"""An Elasticsearch of our own, started by a script that prints `ready PORT` and ends with its
standard input."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

START_S = 400.0  # the first start of all fetches what it is built of
LEAST_JAVA = 21


def can_build() -> bool:
    """Whether there are Maven and a JDK where the script looks for one."""
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
