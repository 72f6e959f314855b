"""Files that are made to keep a reader busy, and paths that lead elsewhere: each is named, and the
rest is read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from service.retrieval.ingest.formats import child
from tests.conftest import need
from tests.support.office import docx
from tests.unit.retrieval.ingest.test_hostile_sources import read

need("selectolax", "mammoth", "pypdf")
NESTED = b"<html><body>" + b"<div>x" * 200_000


def pages_of_pages(levels: int = 40, kids: int = 200) -> bytes:
    """A small PDF whose tree of pages says that there are 200^40 pages."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    for level in range(2, levels + 2):
        of = b"%d 0 R " % (level + 1) * kids
        objects.append(b"<< /Type /Pages /Count 9 /Kids [ %s] >>" % of)
    objects.append(b"<< /Type /Page /MediaBox [0 0 9 9] >>")
    body, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    trailer = b"trailer << /Root 1 0 R /Size %d >>\nstartxref\n%d\n%%%%EOF" % (size, len(body))
    return body + head + trailer


def test_files_that_keep_a_parser_busy_cost_seconds_and_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.html").write_text("<p>Begin.")
    assert read(tmp_path / "0.html") == (["0.html"], [])  # the child has started
    monkeypatch.setattr(child, "PAUSE_S", 8.0)
    (tmp_path / "1.html").write_bytes(NESTED)
    (tmp_path / "2.pdf").write_bytes(pages_of_pages())
    (tmp_path / "3.docx").write_bytes(docx([("Normal", "Still here.")]))
    began = time.monotonic()
    good, bad = read(tmp_path)
    assert time.monotonic() - began < 45
    assert set(good) - {"1.html"} == {"0.html", "3.docx"}
    assert {each.partition(":")[0] for each in bad} - {"/1.html"} == {"/2.pdf"}


def test_a_parser_that_needs_too_much_memory_or_dies_costs_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.html").write_text("<p>One.")
    (tmp_path / "b.html").write_text("<p>Two.")
    child.close_all()
    killed: list[int] = []
    started = child.Child.__init__

    def start(self: child.Child) -> None:
        started(self)
        if not killed:
            killed.append(self._process.pid)
            self._process.kill()
            self._process.wait()

    monkeypatch.setattr(child.Child, "__init__", start)
    assert read(tmp_path) == (["b.html"], [f"/a.html: {child.DIED}"])
    limit = Path(f"/proc/{child._idle[-1]._process.pid}/limits").read_text()
    assert f"Max address space         {child.MEMORY_BYTES} " in limit


def test_links_that_lead_out_and_what_is_no_file_are_named(tmp_path: Path) -> None:
    outside, folder = tmp_path / "secret.txt", tmp_path / "corpus"
    folder.mkdir()
    outside.write_text("Not for this collection.")
    (folder / "a.txt").write_text("A text.")
    (folder / "b.txt").symlink_to(folder / "a.txt")
    (folder / "c.txt").symlink_to(outside)
    (folder / "d.txt").symlink_to("d.txt")
    os.mkfifo(folder / "e.txt")
    good, bad = read(folder)
    assert good == ["a.txt", "b.txt"]
    assert [each.partition(": ")[0] for each in bad] == ["/c.txt", "/d.txt", "/e.txt"]
    assert "outside of its folder" in bad[0]
    assert "no regular file" in bad[2]
    assert read(folder / "b.txt") == (["b.txt"], [])
    assert "outside of its folder" in read(folder / "c.txt")[1][0]
    assert "no regular file" in read(folder / "e.txt")[1][0]
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "corpus").symlink_to(folder)
    assert "outside of its folder" in read(tmp_path / "links" / "corpus")[1][0]
    (folder / "corpus.jsonl").symlink_to(outside)  # a folder in BEIR's form
    assert "outside of its folder" in read(folder)[1][0]
