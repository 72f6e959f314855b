"""The passages of question files, pooled; the samples are our own, in the published form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.evaluation.datasets import load_file
from service.retrieval.documents import Document
from service.retrieval.ingest.sources import read_files

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
        ("2wiki", b'{"context": [[3, ["B"]]]}', "1: title must be a string, not a number"),
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
