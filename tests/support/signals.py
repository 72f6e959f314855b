"""Suspends a process, and waits until it stands still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 10.0
STILL: Final = "TtZX"  # states of threads that do nothing: stopped, traced, ended


def suspend(pid: int) -> None:
    """Send SIGSTOP and wait until every thread has stopped.

    The signal stops the threads one by one as each is scheduled, so on a busy machine the others
    still answer for some milliseconds. Raises TimeoutError after `PATIENCE_S`. Does not wait where
    there is no `/proc`.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_S
    while not all(state in STILL for state in _states(pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has not stopped within {PATIENCE_S:g} s")
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    """Return the state letter of every thread (proc(5), field 3 of `stat`)."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.append(stat.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return found
