from __future__ import annotations

import json
from pathlib import Path

from service.retrieval.documents import Document
from service.retrieval.ingest.formats import KNOWN
from service.retrieval.ingest.formats.base import LONGEST_ROW, STANDARD_INPUT
from service.retrieval.ingest.sources import SourceProblem, read_files, total_bytes


def read(*files: Path) -> tuple[list[str], list[tuple[int, str]]]:
    entries = list(read_files(files))
    good = [entry.found.id for entry in entries if isinstance(entry.found, Document)]
    bad = [(e.found.line, e.found.problem) for e in entries if isinstance(e.found, SourceProblem)]
    positions = [entry.position for entry in entries]
    assert positions == sorted(positions)
    assert positions[-1] == total_bytes(files)
    return good, bad


def test_every_bad_line_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"id": "a", "text": "first"}\r',
        b"",
        b'{"id": "b", "text": "caf\xe9"}',
        b'{"id": "c", "text": ',
        b"[1]",
        b'{"id": "d"}',
        b'{"id": "e", "text": ""}',
        b'{"id": "f", "text": 5}',
        b'{"id": "g", "text": "t", "n": NaN}',
        b'{"id": "h", "text": "\\ud800"}',
        b'{"id": "i", "text": "n\x00l"}\r',
        b"\x00\x00\x00\x00\r",
        b'\xef\xbb\xbf{"id": "j", "text": "t"}\r',
        b'{"id": "z", "text": "last"}',
    ]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    good, bad = read(path)
    assert good == ["a", "z"]
    assert [line for line, _ in bad] == list(range(3, 14))
    assert bad[0][1] == "not UTF-8: byte 25 of the line"
    assert bad[1][1].startswith("not JSON: ")
    assert str(next(e.found for e in read_files([path]) if isinstance(e.found, SourceProblem))) == (
        f"{path}:3: not UTF-8: byte 25 of the line"
    )


def test_a_line_over_1_mb_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    fits = json.dumps({"id": "fits", "text": ""})
    fits = fits.replace('""', '"' + "x" * (LONGEST_ROW - len(fits)) + '"')
    with path.open("w") as file:
        file.write(fits + "\n")
        file.write(fits.replace("fits", "fits2") + "\n")
        file.write('{"id": "after", "text": "t"}\n')
        file.write("z" * 2_000_000)
    good, bad = read(path)
    assert good == ["fits", "after"]
    assert bad == [
        (n, "the line is longer than 1,000,000 bytes; split the document") for n in (2, 4)
    ]


def test_markdown_is_cut_at_its_headings(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Just text.\n")
    (tmp_path / "guide.md").write_text("intro\n\n## The `guide` ##\n\nText.\n")
    (tmp_path / "plain.md").write_text("no heading")
    files = [tmp_path / name for name in ("notes.txt", "guide.md", "plain.md")]
    documents = [entry.found for entry in read_files(files)]
    assert [(d.id, d.title) for d in documents if isinstance(d, Document)] == [
        ("notes.txt", "notes"), ("guide.md#section=1", "The `guide`"),
        ("guide.md#the-guide", "The `guide`"), ("plain.md", "plain"),
    ]  # fmt: skip


def test_headings_are_a_path_in_the_title(tmp_path: Path) -> None:
    (tmp_path / "h.md").write_text(
        "Handbook\n=====\n\n## Leave\n\n### Parental leave\n16 weeks.\n#### Notes\nPaid.\n"
        "```sh\n# a comment\n```\n\nTravel\n---\n\nBy train.\n\n---\n\nSlowly.\n"
    )
    found = [entry.found for entry in read_files([tmp_path / "h.md"])]
    assert [(d.id, d.title, d.text) for d in found if isinstance(d, Document)] == [
        ("h.md#parental-leave", "Handbook › Leave › Parental leave",
         "16 weeks.\n#### Notes\nPaid.\n```sh\n# a comment\n```\n"),
        ("h.md#travel", "Handbook › Travel", "\nBy train.\n\n---\n\nSlowly.\n"),
    ]  # fmt: skip
    (tmp_path / "two.md").write_text("# One\na\n# Two\nb")
    found = [entry.found for entry in read_files([tmp_path / "two.md"])]
    titles = [each.title for each in found if isinstance(each, Document)]
    assert titles == ["two › One", "two › Two"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "other" / "a.txt").write_text("two")
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\xff\xfe\xfd\xfc")
    (tmp_path / "x.ods").write_bytes(b"a,b")
    (tmp_path / "x.zip").write_bytes(b"PK")
    (tmp_path / "x.eml").write_bytes(b"Hello")
    (tmp_path / "x.log").write_bytes(b"Hello")
    (tmp_path / "folder.jsonl").mkdir()
    names = ("a.txt", "other/a.txt", "empty.md", "latin.txt", "x.ods", "x.zip", "x.eml",
             "x.log", "gone.jsonl", "folder.jsonl")  # fmt: skip
    good, bad = read(*(tmp_path / name for name in names))
    assert good == ["a.txt"]
    assert [problem for _, problem in bad] == [
        "another file of this run has the same name",
        "text is empty",
        "not UTF-8: byte 4; save it as UTF-8",
        "unknown file type '.ods'; save it as .xlsx",
        "unknown file type '.zip'; unpack it, and add its files",
        "unknown file type '.eml'; save it as .txt, .html or .pdf",
        f"unknown file type '.log'; known: {KNOWN}; `ingest --format` reads others",
        "cannot be read: No such file or directory",
        f"the folder contains no file; known formats: {KNOWN}",
    ]


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.md").write_text("hidden")
    (tmp_path / "b" / "readme.md").write_text("inner")
    (tmp_path / "readme.md").write_text("outer")
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "t"}')
    assert read(tmp_path) == (["a", "readme.md", "b/readme.md"], [])


def test_a_beir_folder_is_its_corpus(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a query is no document"}')
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "t"}')
    assert read(tmp_path) == (["d"], [])


def test_of_standard_input_no_size_is_known() -> None:
    assert total_bytes([STANDARD_INPUT]) is None
