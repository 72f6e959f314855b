"""Broken and hostile inputs: each is named with file and line, and the rest is read."""

from __future__ import annotations

import gzip
import os
import random
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from service.retrieval.documents import Document
from service.retrieval.ingest.formats import child
from service.retrieval.ingest.formats import rows as rows_module
from service.retrieval.ingest.formats.base import zstd
from service.retrieval.ingest.sources import SourceProblem, read_files
from tests.conftest import need
from tests.support.office import docx
from tests.unit.retrieval.ingest.test_formats import parquet

HEADER = b"id\ttext\ttitle\n"


def read(path: Path, format: str | None = None) -> tuple[list[str], list[str]]:
    """Ids, and problems without the folder."""
    found = [entry.found for entry in read_files([path], format)]
    good = [each.id for each in found if isinstance(each, Document)]
    bad = [str(each) for each in found if isinstance(each, SourceProblem)]
    assert all(each.startswith(str(path)) for each in bad)
    return good, [each.removeprefix(str(path)) for each in bad]


def lines(count: int) -> bytes:
    """Text that does not compress, so that a cut falls into the middle of it."""
    dice = random.Random(1)
    return b"".join(
        b'{"id": "%d", "text": "%s"}\n' % (n, dice.randbytes(400).hex().encode())
        for n in range(count)
    )


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_what_came_before_a_cut_is_read(tmp_path: Path, compress: Any) -> None:
    path = tmp_path / "x.jsonl.gz"
    packed = compress(lines(2_000))
    path.write_bytes(packed[: len(packed) // 2])
    good, bad = read(path)
    last = len(good)
    assert good == [str(n) for n in range(last)]
    assert 800 < last < 1_200
    assert len(bad) == 1
    what = "the compressed data is truncated or damaged after this line; download the file again"
    assert bad[0].startswith(f":{last}: {what}")


def test_damage_is_found_by_the_checksum_at_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    packed = bytearray(gzip.compress(lines(2_000)))
    middle = len(packed) // 2
    packed[middle : middle + 64] = random.Random(2).randbytes(64)
    path.write_bytes(packed)
    good, bad = read(path)
    assert good[:800] == [str(n) for n in range(800)]
    assert "download the file again" in bad[-1]


NO_LIST = "a document must be a JSON object, not a list"
NO_ARCHIVE = (
    ": cannot be read: the file name says compressed, but the content is not gzip or zstd; "
    "download it again"
)
QUOTES = b"\n".join(
    [
        b'1\t"a ""quote"" and\ta tab"\tT\r',
        b'2\tan inch" is no quote\tT\r',
        b'3\t"closed" too early\tT',
        b"4\ttoo few",
        b"5\tcaf\xe9\tT",
        b"6\t" + b"x" * 1_000_001 + b"\tT",
        b'7\t"never closed\tT',
        b"8\tt\tT",
    ]
)


@pytest.mark.parametrize(
    ("name", "content", "good", "bad"),
    [
        ("x.jsonl.gz", b"<html>404</html>", [], [NO_ARCHIVE]),
        ("x.jsonl.zst", b"<html>404</html>", [], [NO_ARCHIVE]),
        *(
            (name, b"", [], [": the file is empty"])
            for name in ("x.jsonl", "x.tsv", "x.json", "x.md", "x.parquet", "x.jsonl.gz")
        ),
        ("x.jsonl", b"\n \r\n", [], [": the file contains no rows, read as jsonl"]),
        ("x.tsv", HEADER, [], [": the file contains no rows, read as dpr"]),
        ("x.json", b"[]", [], [": the file contains no rows, read as jsonl"]),
        ("x.txt", "Größe: 5 €".encode("utf-16"), ["x.txt"], []),
        ("x.txt", "Größe: 5 €, für alle".encode("cp1252"), ["x.txt"], []),
        ("x.txt", "Größe ".encode() + b"\xff", [], [": not UTF-8: byte 9; save it as UTF-8"]),
        ("x.txt", "Привет, мир".encode("cp1251"), [], [": not UTF-8: byte 1; save it as UTF-8"]),
        ("x.txt", b"Some\x00text.", [], [": not a text file: NUL at character 5"]),
        (
            "x.tsv",
            b"\xef\xbb\xbf" + HEADER + QUOTES,
            ["1", "2", "8"],
            [
                ":4: not valid CSV: '\t' expected after '\"'",
                ":5: the line has 2 fields, but the header has 3",
                ":6: not UTF-8: byte 6 of the line",
                ":7: the line is longer than 1,000,000 bytes; split the document",
                ":8: not valid CSV: unexpected end of data",
            ],
        ),
        *(
            ("x.jsonl", first + b'\n{"id": "a", "text": "t"}\n', ["a"], [f":1: {NO_LIST}"])
            for first in (b"[]", b"[1, 2]", b'[{"id": "b", "text": "t"}]')
        ),
        ("x.jsonl", b'[{"id": "a", "text": "t"}]\n', ["a"], []),
        (
            "x.json",
            b'[{"title": "A", "text": "t", "idx": "a"}, 5, {"title": "B"}]',
            ["a"],
            [
                ":2: a document must be a JSON object, not a number",
                ":3: text must be a string, but is missing",
            ],
        ),
        (
            "x.json",
            b'[{"text": "%s"}]' % (b"x" * 1_000_001),
            [],
            [":1: longer than 1,000,000 bytes; split the document"],
        ),
        (
            "corpus.jsonl",
            b'{"_id": "a", "text": "t"}\n[]\n{"_id": "b", "text": "t", "metadata": 5}\n'
            b'{"_id": "c", "text": "t", "metadata": {"title": "again"}}\n',
            ["a"],
            [
                f":2: {NO_LIST}",
                ":3: metadata must be an object",
                ":4: metadata must not contain title, which is a field of the document",
            ],
        ),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_is_read(
    tmp_path: Path, name: str, content: bytes, good: list[str], bad: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert read(path) == (good, bad)


def test_a_list_that_breaks_off_or_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'[{"title": "A", "text": "t", "idx": "a"}, 5, {"title": "B"}, \n {]')
    good, bad = read(path)
    assert good == []
    assert bad[0].startswith(":2: not JSON: ")
    monkeypatch.setattr(rows_module, "LARGEST_LIST", 10)
    assert "convert it to JSONL" in read(path)[1][0]
    assert "must not exceed 10 bytes" in read(path, "hotpotqa")[1][0]


def test_parquet_that_is_none(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"id": ["a"], "body": ["t"], "raw": [b"\xff"]})
    assert read(path) == ([], [": there is no column `text`; the columns are: id, body, raw"])
    parquet(path, {"id": ["a", "b"], "text": ["t", None], "raw": [None, b"\xff"]})
    good, bad = read(path)
    assert good == ["a"]
    assert bad[0].startswith(":2: not plain JSON: ")
    path.write_bytes(path.read_bytes()[:-20])
    assert read(path)[1][0].startswith(": not a complete Parquet file: ")
    packed = tmp_path / "x.parquet.gz"
    packed.write_bytes(gzip.compress(b"PAR1"))
    assert "save it to a file" in read(packed)[1][0]


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert read(path)[1] == [
        ": Parquet needs pyarrow; run: pip install '.[parquet]' in the checkout"
    ]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A stream that unpacks to 100 MB, with a line of 40 MB in it."""
    path = tmp_path / "psgs_w100.tsv.gz"
    row = b"%d\t" + b"word " * 100 + b"\tTitle\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(HEADER)
        for start in range(0, 100_000, 1_000):
            file.write(b"".join(row % n for n in range(start, start + 1_000)))
        file.write(b"x" * 40_000_000)
    count = bad = 0
    tracemalloc.start()
    try:
        for entry in read_files([path]):
            count += isinstance(entry.found, Document)
            bad += isinstance(entry.found, SourceProblem)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (count, bad) == (100_000, 1)
    assert peak < 5_000_000


def test_a_table_without_header(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(b"1\tt\tT\n2\tt\tT\n")
    what = "the first line must name the columns id, text and title, with tabs between them"
    assert read(path, "dpr") == ([], [f":1: {what}"])


# Files that are made to keep a reader busy, and paths that lead elsewhere: each is named, and the
# rest is read.


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
    need("selectolax", "mammoth", "pypdf")
    (tmp_path / "0.html").write_text("<p>Begin.")
    child.close_all()
    began = time.monotonic()
    assert read(tmp_path / "0.html") == (["0.html"], [])
    pause_s = max(8.0, 4 * (time.monotonic() - began))  # in which the next child starts, too
    monkeypatch.setattr(child, "PAUSE_S", pause_s)
    (tmp_path / "1.html").write_bytes(NESTED)
    (tmp_path / "2.pdf").write_bytes(pages_of_pages())
    (tmp_path / "3.docx").write_bytes(docx([("Normal", "Still here.")]))
    began = time.monotonic()
    good, bad = read(tmp_path)
    assert time.monotonic() - began < 6 * pause_s < child.WHOLE_S
    assert set(good) - {"1.html"} == {"0.html", "3.docx"}
    assert {each.partition(":")[0] for each in bad} - {"/1.html"} == {"/2.pdf"}


@pytest.mark.usefixtures("own_children")
def test_a_parser_that_needs_too_much_memory_or_dies_costs_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("selectolax", "mammoth", "pypdf")
    (tmp_path / "a.html").write_text("<p>One.")
    (tmp_path / "b.html").write_text("<p>Two.")
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


@pytest.mark.usefixtures("own_children")
def test_children_are_limited_and_end_when_there_is_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("selectolax")
    for name in ("a", "b"):
        (tmp_path / f"{name}.html").write_text(f"<p>{name}.")
    monkeypatch.setattr(child, "_places", threading.BoundedSemaphore(1))
    monkeypatch.setattr(child, "WAIT_S", 0.1)
    monkeypatch.setattr(child, "IDLE_S", 0.5)
    first = read_files([tmp_path / "a.html"])
    next(first)
    assert read(tmp_path / "b.html") == ([], [f": {child.BUSY}"])
    first.close()
    assert read(tmp_path / "b.html") == (["b.html"], [])
    [idle] = child._idle
    assert idle._process.wait(60) == 0  # a child of a server ends after two minutes
    assert read(tmp_path / "a.html") == (["a.html"], [])
    assert child._idle != [idle]


@pytest.mark.usefixtures("own_children")
def test_a_child_that_ended_while_it_was_idle_costs_no_file(tmp_path: Path) -> None:
    need("selectolax")
    (tmp_path / "a.html").write_text("<p>a.")
    assert read(tmp_path / "a.html") == (["a.html"], [])
    for idle in child._idle:
        idle._process.kill()
        idle._process.wait()
    assert read(tmp_path / "a.html") == (["a.html"], [])


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
