from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import StoreBusy, StoreError
from service.core.locks import Owner, acquire, find_owner

HOLD = """
import sys, time
from pathlib import Path
from service.core.locks import acquire
directory = acquire(Path(sys.argv[1]))
directory.set_url("http://127.0.0.1:1")
print("held", flush=True)
time.sleep(60)
"""


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    assert find_owner(tmp_path / "absent") is None
    with acquire(tmp_path / "data") as directory:
        directory.set_url("http://127.0.0.1:8000/a/longer/url")
        with pytest.raises(StoreBusy, match=f"process {os.getpid()}.*--data") as caught:
            acquire(tmp_path / "data")
        assert caught.value.status == 503
        directory.set_url("http://h:1")
        assert find_owner(tmp_path / "data") == Owner(os.getpid(), "http://h:1")
        directory.set_url(None)
        assert find_owner(tmp_path / "data") == Owner(os.getpid(), None)
    assert find_owner(tmp_path / "data") is None
    with acquire(tmp_path / "data"):
        pass


def test_the_lock_dies_with_a_killed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_owner(tmp_path) == Owner(process.pid, "http://127.0.0.1:1")
        with pytest.raises(StoreBusy, match=str(process.pid)):
            acquire(tmp_path)
        process.send_signal(signal.SIGKILL)
    assert find_owner(tmp_path) is None
    with acquire(tmp_path):
        assert find_owner(tmp_path) == Owner(os.getpid())


def test_a_disk_without_room_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call in ("pwrite", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StoreError, match="No space left on device; make room"):
                acquire(tmp_path)
    with acquire(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"part of this path is a file; choose .* --data"):
        acquire(tmp_path / "file" / "data")
