"""Each format, read as its makers write it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.evaluation.datasets import load_file
from service.retrieval.documents import Document, passages_of
from service.retrieval.ingest.formats import detect
from service.retrieval.ingest.formats.base import STANDARD_INPUT, zstd
from service.retrieval.ingest.formats.pages import edition, front_matter
from service.retrieval.ingest.formats.rows import json_document
from service.retrieval.ingest.sources import SourceProblem, read_files
from tests.conftest import need, unavailable

QUOTED = 'Aaron Aaron ( or ; ""Ahärôn"") is a "prophet"'


def documents(*files: Path, format: str | None = None) -> list[Document]:
    found = [entry.found for entry in read_files(files, format)]
    assert not [each for each in found if isinstance(each, SourceProblem)]
    return [each for each in found if isinstance(each, Document)]


def dpr(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    """As DPR's own script wrote psgs_w100.tsv."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(("id", "text", "title"))
        writer.writerows(rows)
    return path


def parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    try:
        from pyarrow import parquet as writing
        from pyarrow import table
    except ImportError:
        unavailable("pyarrow", "install the extra `parquet`")
    writing.write_table(table(columns), path)
    return path


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_compressed_lines(tmp_path: Path, compress: Any) -> None:
    path = tmp_path / "x.jsonl.gz"  # what it is compressed with is seen, not read from the name
    lines = b"".join(b'{"id": "%d", "text": "t"}\n' % n for n in range(5))
    path.write_bytes(compress(lines) + compress(b'{"id": "more", "text": "t"}'))
    assert [each.id for each in documents(path)] == ["0", "1", "2", "3", "4", "more"]


def test_dpr_wikipedia(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(30))
    rows = [("1", QUOTED, "Aaron"), ("2", "a\ttab", 'The "B"'), ("3", words, "C")]
    path = dpr(tmp_path / "psgs_w100.tsv", rows)
    read = documents(path)
    assert [(each.id, each.text, each.title) for each in read] == rows
    assert [record.passage.passage_id for record in passages_of(read[0])] == ["1"]
    packed = tmp_path / "psgs_w100.tsv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert documents(packed) == read
    entries = list(read_files([path]))
    assert [entry.line for entry in entries] == [2, 3, 4]


def test_beir(tmp_path: Path) -> None:
    rows = [
        {"_id": "d1", "title": "T", "text": "Some text.", "metadata": {"url": "u", "year": 1999}},
        {"_id": "d2", "title": "Only a title", "text": "", "metadata": {}},
        {"_id": 3, "title": "", "text": "No title."},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second, third = documents(path)
    assert (first.id, first.title, dict(first.metadata)) == ("d1", "T", {"url": "u", "year": 1999})
    assert (second.title, second.text) == ("Only a title", "Only a title")
    assert third.id == "3"


def test_hipporag(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"title": "A", "text": "First.", "idx": 0},
        {"title": "B", "text": "Second."},
        {"title": "C", "text": "Third.", "idx": 2, "id": "own"},
    ]
    path = tmp_path / "musique_corpus.json"
    path.write_text(json.dumps(rows, indent=2))
    first, second, third = documents(path)
    assert (first.id, third.id) == ("0", "own")
    assert len(second.id) == 32
    assert (second.title, dict(first.metadata)) == ("B", {})


def test_parquet(tmp_path: Path) -> None:
    columns = {
        "id": ["a", "b"],
        "text": ["First.", "Second."],
        "title": ["A", None],
        "day": [date(2026, 1, 2), None],
        "tags": [["x"], []],
        "embedding": [[0.5, 0.25], [1.0, 0.0]],
    }
    first, second = documents(parquet(tmp_path / "x.parquet", columns))
    assert (first.id, first.title) == ("a", "A")
    assert dict(first.metadata) == {"day": "2026-01-02", "tags": ["x"]}
    assert (second.title, dict(second.metadata)) == ("", {"tags": []})
    renamed = parquet(tmp_path / "of_beir", {"_id": ["x"], "title": ["T"], "text": ["t"]})
    assert [each.id for each in documents(renamed)] == ["x"]


def test_times_in_parquet(tmp_path: Path) -> None:
    pyarrow = need("pyarrow")
    nanoseconds = pyarrow.array([1_767_312_000_123_456_789, None], pyarrow.timestamp("ns", "UTC"))
    of_pandas = parquet(tmp_path / "of_pandas", {"text": ["a", "b"], "at": nanoseconds})
    first, second = documents(of_pandas)
    assert dict(first.metadata) == {"at": "2026-01-02T00:00:00.123456+00:00"}
    assert not second.metadata

    late = pyarrow.array([10**15], pyarrow.timestamp("s"))
    entries = read_files([parquet(tmp_path / "late", {"text": ["a"], "at": late})])
    (problem,) = [entry.found for entry in entries]
    assert "a value after row 0 has no form in JSON" in str(problem)


@pytest.mark.parametrize(
    ("content", "format", "ids"),
    [
        (b'{"id": "a", "text": "t"}\n', None, ["a"]),
        (gzip.compress(b'{"_id": "b", "text": "t"}\n', mtime=0), None, ["b"]),
        (b'[{"id": "c", "title": "", "text": "t"}]', None, ["c"]),
        (b"id\ttext\ttitle\n7\tt\tT\n", None, ["7"]),
        (b"title\tid\ttext\nT\t7\tt\n", "dpr", ["7"]),
    ],
)
def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, content: bytes, format: str | None, ids: list[str]
) -> None:
    given = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", given)
    assert [each.id for each in documents(STANDARD_INPUT, format=format)] == ids


@pytest.mark.parametrize(
    ("name", "head", "format"),
    [
        ("x.jsonl", b'{"id": "a"}', "jsonl"),
        ("x.JSONL.GZ", b'{"id": "a"}', "jsonl"),
        ("x.jsonl", b'{"text": "say \\"_id\\": 5"}', "jsonl"),
        ("x.jsonl", b'{"id": "a"}\n{"_id": "b"}', "jsonl"),
        ("x.jsonl", b"[", "jsonl"),
        ("x.json", b" \n[", "jsonl"),
        ("x.json", b"\xef\xbb\xbf[", "jsonl"),
        ("x.json", b'{"id": "a"}', "jsonl"),
        ("x.json", b"?", "jsonl"),
        ("x.tsv.zst", b"?", "csv"),
        ("x.tsv.zst", b"text\tid\ttitle\n", "dpr"),
        ("x.bin", b"PAR1", "parquet"),
        ("x.md", b"# H", "text"),
        ("-", b"id\ttext\ttitle\n", "dpr"),
        ("-", b"a,b,c", None),
        ("x.csv", b"id\ttext\ttitle\n", "csv"),
        ("x.htm", b"<p>", "html"),
        ("x.XHTML.gz", b"<p>", "html"),
        ("-", b"\n<!DOCTYPE HTML><p>", "html"),
        ("download", b"<html lang=en>", "html"),
        ("x.bin", b"%PDF-1.4", "pdf"),
        ("x.pdf", b"no", "pdf"),
        ("x.docx", b"PK\x03\x04", "docx"),
        ("x.doc", b"\xd0\xcf", None),
    ],
)
def test_which_format(name: str, head: bytes, format: str | None) -> None:
    assert detect(Path(name), head) == format


def test_flashrag_has_the_title_in_the_first_line() -> None:
    lines = ('"Berg"\nBerg painted.', "Only text.")
    made = [json_document({"id": str(n), "contents": line}) for n, line in enumerate(lines)]
    assert [(each.id, each.title, each.text) for each in made] == [
        ("0", "Berg", "Berg painted."), ("1", "", "Only text."),
    ]  # fmt: skip


# What a file says about its edition.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("leave-2024.txt", {"date": "2024"}),
        ("minutes 2025-03-11.md", {"date": "2025-03-11"}),
        ("minutes_20250311.md", {"date": "2025-03-11"}),
        ("report.2025.03.pdf", {"date": "2025-03"}),
        ("rules-v1.4.md", {"version": "1.4"}),
        ("rules Version 2 (2023).html", {"date": "2023", "version": "2"}),
        ("invoice-120240.txt", {}),
        ("pump-hp2025x.md", {"date": "2025"}),
        ("dev2.md", {}),
        ("-", {}),
    ],
)
def test_the_name_of_a_file(name: str, expected: dict[str, str]) -> None:
    assert edition(name, {}) == expected


def test_front_matter_counts_more_than_the_name(tmp_path: Path) -> None:
    text = (
        '---\ntitle: "Rules"\nversion: "2.0"\nvalid_from: 2024-05-02\nowner: IT\n---\nNo sticks.\n'
    )
    (tmp_path / "rules-v1-2019.md").write_text(text)
    document = next(iter(read_files([tmp_path]))).found
    assert isinstance(document, Document)
    assert (document.title, document.text) == ("Rules", "No sticks.\n")
    assert document.metadata == {"version": "2.0", "valid_from": "2024-05-02"}


@pytest.mark.parametrize(
    "text",
    [
        "---\nno field\n---\nText.",
        "---\ntitle: open\nText.",
        "Text.\n---\na: b\n---\n",
        "a: b\n" * 30_000,
    ],
)
def test_what_is_no_front_matter_stays(text: str) -> None:
    assert front_matter(text) == ({}, text)


# The passages of question files, pooled; the samples are our own, in the published form.


HOTPOTQA = [
    {
        "_id": "h1",
        "question": "Where did the painter live?",
        "answer": "Oslo",
        "supporting_facts": [["Anna Berg", 1]],
        "context": [
            ["Anna Berg", ["Anna Berg painted.", " She lived in Oslo."]],
            ["Oslo", ["Oslo is a city."]],
            ["Empty", []],
        ],
    },
    {
        "_id": "h2",
        "question": "What is Oslo?",
        "answer": "a city",
        "supporting_facts": [["Oslo", 0]],
        "context": [["Oslo", ["Oslo is a city."]], ["Oslo", ["Oslo is a ship."]]],
    },
]
MUSIQUE = [
    {
        "id": "2hop__1",
        "question": "Where did the painter of Dawn live?",
        "answer": "Oslo",
        "answer_aliases": [],
        "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "Dawn", "paragraph_text": "Berg did.", "is_supporting": True},
            {"idx": 1, "title": "Dawn", "paragraph_text": "A ship.", "is_supporting": False},
        ],
    }
]


def read(path: Path, format: str) -> tuple[list[Document], list[str]]:
    found = [entry.found for entry in read_files([path], format)]
    documents = [each for each in found if isinstance(each, Document)]
    return documents, [str(each) for each in found if not isinstance(each, Document)]


def told(documents: list[Document]) -> list[tuple[str, str]]:
    return [(document.title, document.text) for document in documents]


def written(path: Path, value: object, lines: bool = False) -> Path:
    rows: Any = value
    path.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(value))
    return path


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize(("format", "joint"), [("hotpotqa", ""), ("2wiki", " ")])
def test_each_different_passage_once(tmp_path: Path, format: str, joint: str, lines: bool) -> None:
    documents, problems = read(written(tmp_path / "dev.json", HOTPOTQA, lines), format)
    assert problems == []
    assert told(documents) == [
        ("Anna Berg", f"Anna Berg painted.{joint} She lived in Oslo."),
        ("Oslo", "Oslo is a city."),
        ("Oslo", "Oslo is a ship."),
    ]
    assert len({document.id for document in documents}) == 3


def test_the_columns_of_data_set_hubs(tmp_path: Path) -> None:
    row = {"context": {"title": ["A", "B"], "sentences": [["One.", " Two."], ["Three."]]}}
    documents, _ = read(written(tmp_path / "dev.jsonl", [row], lines=True), "hotpotqa")
    assert told(documents) == [("A", "One. Two."), ("B", "Three.")]


def test_gold_passages_have_the_ids_that_evaluate_knows(tmp_path: Path) -> None:
    path = written(tmp_path / "musique.jsonl", MUSIQUE, lines=True)
    documents, problems = read(path, "musique")
    assert (len(documents), problems) == (2, [])
    (question,) = load_file(path)[0]
    assert [document.text for document in documents if document.id in question.supporting] == [
        "Berg did."
    ]
    path = written(tmp_path / "hotpotqa.json", HOTPOTQA)
    titles = {document.title.casefold() for document in read(path, "hotpotqa")[0]}
    for question in load_file(path)[0]:
        assert question.supporting_titles <= titles


@pytest.mark.parametrize(
    ("format", "content", "problem"),
    [
        ("hotpotqa", b'[{"context": []}, {}]', "2: `context` is missing or not as"),
        ("hotpotqa", b'[{"context": [["Title"]]}]', "1: `context` is missing or not as"),
        ("hotpotqa", b'[{"context": [["Title", [1]]]}]', "1: `context` is missing or not as"),
        ("2wiki", b'{"context": [["A", ["B"]]]}\n7', "2: `context` is missing or not as"),
        ("2wiki", b'{"context": [[3, ["B"]]]}', "1: title must be a string, but is a number"),
        ("musique", b'{"paragraphs": [{"title": "A"}]}', "1: `paragraphs` is missing or not as"),
        ("musique", b'{"paragraphs": []}\n{"par', "2: not JSON: "),
        ("musique", b'{"paragraphs": []}\n\xff', "2: not UTF-8: byte 1 of the line"),
        ("hotpotqa", b'[{"context":\n', "2: not JSON: "),
        ("hotpotqa", b"[\xff]", "1: not JSON: str is not valid UTF-8"),
        ("hotpotqa", b"[]", "the file contains no rows, read as hotpotqa"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, format: str, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    _, problems = read(path, format)
    assert any(each.startswith(f"{path}:{problem}") or each == f"{path}: {problem}"
               for each in problems), problems  # fmt: skip
