"""Broken and hostile inputs: each is named with file and line, and the rest is read."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from service.retrieval.documents import Document
from service.retrieval.ingest.formats import rows as rows_module
from service.retrieval.ingest.formats.base import zstd
from service.retrieval.ingest.sources import SourceProblem, read_files
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


def test_a_name_that_lies_about_compression(tmp_path: Path) -> None:
    for name in ("x.jsonl.gz", "x.jsonl.zst"):
        path = tmp_path / name
        path.write_text("<html>404</html>")
        assert read(path) == (
            [],
            [
                ": cannot be read: the file name says compressed, but the content is not gzip or "
                "zstd; download it again"
            ],
        )


@pytest.mark.parametrize(
    "name", ["x.jsonl", "x.tsv", "x.json", "x.md", "x.parquet", "x.jsonl.gz", "corpus.jsonl"]
)
def test_empty_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    assert read(path) == ([], [": the file is empty"])


def test_files_without_rows(tmp_path: Path) -> None:
    for name, content, kind in [
        ("x.jsonl", b"\n \r\n", "jsonl"),
        ("x.tsv", HEADER, "dpr"),
        ("x.json", b"[]", "jsonl"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        assert read(path) == ([], [f": the file contains no rows, read as {kind}"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("Größe: 5 €".encode("utf-16"), ""),
        ("Größe: 5 €, für alle".encode("cp1252"), ""),
        ("Größe ".encode() + b"\xff", ": not UTF-8: byte 9; save it as UTF-8"),
        ("Привет, мир".encode("cp1251"), ": not UTF-8: byte 1; save it as UTF-8"),
    ],
)
def test_how_a_text_is_decoded(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    found, bad = read(path)
    assert bad == ([problem] if problem else [])
    assert found == ([] if problem else ["x.txt"])


def test_a_text_has_no_nul(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"Some\x00text.")
    assert read(path) == ([], [": not a text file: NUL at character 5"])


def test_tables_with_loose_quotes_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    rows = [
        b'1\t"a ""quote"" and\r',
        b'a line end"\tT\r',
        b'2\tan inch" is no quote\tT\r',
        b'3\t"closed" too early\tT',
        b"4\ttoo few",
        b"5\tcaf\xe9\tT",
        b"6\t" + b"x" * 1_000_001 + b"\tT",
        b'7\t"never closed\tT',
        b"8\tt\tT",
    ]
    path.write_bytes(b"\xef\xbb\xbf" + HEADER + b"\n".join(rows))
    good, bad = read(path)
    assert good == ["1", "2", "8"]
    assert bad == [
        ":5: not valid CSV: '\t' expected after '\"'",
        ":6: the line has 2 fields, but the header has 3",
        ":7: not UTF-8: byte 6 of the line",
        ":8: the line is longer than 1,000,000 bytes; split the document",
        ":9: a quote opens here and is not closed within 100 lines",
    ]


@pytest.mark.parametrize("first", [b"[]", b"[1, 2]", b'[{"id": "b", "text": "t"}]'])
def test_a_first_line_that_is_a_list_costs_no_other_line(tmp_path: Path, first: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(first + b'\n{"id": "a", "text": "t"}\n')
    assert read(path) == (["a"], [":1: a document must be a JSON object, not a list"])
    path.write_bytes(b'[{"id": "a", "text": "t"}]\n')
    assert read(path) == (["a"], [])


def test_lists_of_the_wrong_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'[{"title": "A", "text": "t", "idx": "a"}, 5, {"title": "B"}, \n {]')
    assert read(path)[0] == []
    assert read(path)[1][0].startswith(":2: not JSON: ")
    path.write_bytes(b'[{"title": "A", "text": "t", "idx": "a"}, 5, {"title": "B"}]')
    assert read(path) == (
        ["a"],
        [
            ":2: a document must be a JSON object, not a number",
            ":3: text must be a string, not missing",
        ],
    )
    path.write_bytes(b'[{"text": "%s"}]' % (b"x" * 1_000_001))
    assert read(path) == ([], [":1: longer than 1,000,000 bytes; split the document"])
    monkeypatch.setattr(rows_module, "LARGEST_LIST", 1_000)
    assert "convert it to JSONL" in read(path)[1][0]
    assert "must not exceed 1,000 bytes" in read(path, "hotpotqa")[1][0]


def test_beir_rows_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        b'{"_id": "a", "text": "t"}\n[]\n{"_id": "b", "text": "t", "metadata": 5}\n'
        b'{"_id": "c", "text": "t", "metadata": {"title": "again"}}\n'
    )
    good, bad = read(path)
    assert good == ["a"]
    assert bad == [
        ":2: a document must be a JSON object, not a list",
        ":3: metadata must be an object",
        ":4: metadata must not contain title, which is a field of the document",
    ]


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
