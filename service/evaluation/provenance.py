"""The commit and the machine of an evaluation."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

import service

_GIT: Final = ("git", "-C", str(Path(service.__file__).parent))


def process() -> dict[str, str | None]:
    """Return commit and machine of this process for `run.json`. Blocking."""
    return {"commit": commit(), "machine": machine()}


def commit() -> str | None:
    """Return the commit of the code, with `+` if files have changed since. Blocking.

    Returns None if the service was not installed from a working tree.
    """
    try:
        tracked = _git("ls-files", "--error-unmatch", "__init__.py")
        return tracked and _git("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run([*_GIT, *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def machine() -> str:
    """Return the machine's type and Python version, without host names."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{platform.system()} {platform.machine()}, {cores} cores, {_memory()}"
        f"Python {platform.python_version()}"
    )


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return ""
    return f"{size / 2**30:.0f} GiB memory, "
