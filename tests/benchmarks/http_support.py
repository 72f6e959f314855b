"""What the HTTP benchmarks share: a server process, its CPU time, quantiles."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE = 4096


class ServerProcess:
    """A program that prints its URL first; `cpu_s` is what all its threads have used."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url, self.pid = url, process.pid
        self.port = int(url.split(":")[2].split("/", 1)[0])

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def resident(self) -> int:
        """Bytes of memory in use."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE


def cpu_s(pid: int) -> float:
    """What all threads of a process have used that have not ended."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


@contextlib.contextmanager
def server(module: str, *options: str) -> Iterator[ServerProcess]:
    """Run ``python -m module``; it is terminated at the end."""
    command = [sys.executable, "-m", module, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ServerProcess(process, process.stdout.readline().strip())
        finally:
            process.terminate()


def quantile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
