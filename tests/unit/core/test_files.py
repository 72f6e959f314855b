"""Files that are written whole, and folders that are deleted whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import StoreError
from service.core.files import (
    discard,
    open_lines,
    sweep,
    whole_file,
    write_whole,
)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    write_whole(path, "älter")
    write_whole(path, b"new \xff")
    assert path.read_bytes() == b"new \xff"
    write_whole(path, "lone \udc80")
    assert path.read_text() == "lone \\udc80"
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_failure_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(OSError, match="full"):
        _write_in_vain(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _write_in_vain(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"half of the new")
        raise OSError("the disk is full")


def test_folders_are_discarded_and_remains_are_swept(tmp_path: Path) -> None:
    (tmp_path / "c" / "1").mkdir(parents=True)
    (tmp_path / "c" / ".deleted-2-x").mkdir()
    (tmp_path / ".deleted-d-x").mkdir()
    discard(tmp_path / "c" / "1")
    discard(tmp_path / "absent")
    assert [each.name for each in (tmp_path / "c").iterdir()] == [".deleted-2-x"]
    sweep(tmp_path)
    assert [each.name for each in tmp_path.rglob("*")] == ["c"]


def test_a_file_of_lines_has_one_writer_and_leaves_out_what_a_kill_cut(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthr")
    with open_lines(path) as file:
        assert file.content == b"one\ntwo\n"
        with pytest.raises(StoreError, match="another process is writing it"), open_lines(path):
            pass
    assert path.read_bytes() == b"one\ntwo\nthr"  # only a writer changes it
    with open_lines(path) as file:
        file.append(b"three")
        file.append(b"four")
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"
    with pytest.raises(StoreError, match="cannot be opened"), open_lines(tmp_path):
        pass
