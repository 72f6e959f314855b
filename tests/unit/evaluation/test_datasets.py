"""Gold questions out of JSONL; every bad line is named before anything runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from service.evaluation.datasets import DatasetError, load_file, named_file, read_question


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answer": "Rome"}, ("Rome",)),
        ({"answer": ["Rome", "Roma"]}, ("Rome", "Roma")),
        ({"answers": ["Rome"], "answer_aliases": ["Roma", "Rome"]}, ("Rome", "Roma")),
        ({"answer": "Rome", "answer_aliases": None}, ("Rome",)),
        ({"answer": True}, ("yes",)),
        ({"answer": False}, ("no",)),
        ({"answer": 1984}, ("1984",)),
        ({"answer": "B", "choices": {"A": "Oslo", "B": "Rome"}}, ("Rome",)),
        ({"answer": "Rome && 1984"}, ("Rome && 1984",)),
        ({"parts": ["Rome", ["1984", "in 1984"]]}, ("Rome && 1984",)),
    ],
)
def test_answers(row: dict[str, Any], answers: tuple[str, ...]) -> None:
    assert read_question({"question": "Q?"} | row, "1").answers == answers


def test_parts() -> None:
    joined = read_question({"question": "Q?", "answer": "Rome && 1984"}, "1")
    listed = read_question({"question": "Q?", "parts": ["Rome", ["1984", "in 1984"]]}, "1")
    assert joined.parts == (("Rome",), ("1984",))
    assert listed.parts == (("Rome",), ("1984", "in 1984"))
    assert listed.golds == ("Rome", "1984", "in 1984")


def test_the_rest_of_a_row() -> None:
    row = {
        "id": 7, "question": "Q?", "answer": "x", "route": "complex",
        "supporting_passage_ids": ["p"], "hops": [{"anything": 1}],
    }  # fmt: skip
    question = read_question(row, "1")
    assert (question.id, question.route) == ("7", "complex")
    assert question.supporting == frozenset({"p"})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "is not JSON: "),
        (b"[]", "is not a JSON object"),
        (b'"text"', "is not a JSON object"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"[" * 100_000, "is n"),
        (b'{"answer": "x"}', "question: Field required"),
        (b'{"question": " ", "answer": "x"}', "question: Value error, the question is blank"),
        (b'{"question": 3, "answer": "x"}', "question: Input should be a valid string"),
        (b'{"question": "\\ud83d", "answer": "x"}', "question: Input should be a valid string"),
        (b'{"question": "Q?"}', "has no answer"),
        (b'{"question": "Q?", "answers": []}', "has no answer"),
        (b'{"question": "Q?", "answer": ""}', "answer.0: String should have at least 1"),
        (b'{"question": "Q?", "answer": {"a": 1}}', "answer.0: Input should be a valid string"),
        (b'{"question": "Q?", "answers": [["x"]]}', "answers.0: Input should be a valid string"),
        (b'{"question": "Q?", "answer": NaN}', "answer.0: Input should be a valid string"),
        (b'{"question": "Q?", "parts": [-1e400]}', "parts.0.0: Input should be a valid string"),
        (b'{"question": "Q?", "answer": "x", "route": "multi"}', "route: Input should be 'direct'"),
        (b'{"question": "Q?", "answer": "x", "route": ["single"]}', "route: Input should be 'dir"),
        (b'{"question": "Q?", "answer": "x", "parts": "y"}', "parts: Input should be a valid list"),
        (b'{"question": "Q?", "answer": "x", "parts": [[]]}', "parts.0: Value should have at lea"),
        (b'{"question": "Q?", "answer": "x", "id": 1.5}', "id.constrained-str: Input should be"),
        (b'{"question": "Q?", "answer": "x", "id": "1"}', "occurs earlier, at bad.jsonl:1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"question": "Q?", "answer": "x"}\n\n' + line + b"\n")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}:3: ")
    assert what in problem


def test_a_question_too_long(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"question": "x" * 4001, "answer": "y"}), encoding="utf-8")
    with pytest.raises(DatasetError, match="at most 4000 characters"):
        load_file(path)


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n" * 30, encoding="utf-8")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == f"{path}: 10 more invalid lines"


def test_an_empty_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="contains no questions"):
        load_file(tmp_path / "empty.jsonl")
    with pytest.raises(DatasetError, match="cannot be read"):
        load_file(tmp_path / "absent.jsonl")


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "Q?", "answer": "x"}\r\n')
    assert [question.id for question in load_file(path)[0]] == ["1"]


@pytest.mark.parametrize("content", ["question,answer\nWho?,I\n", "Who?\n", ""])
def test_another_format_is_told_what_a_line_must_be(tmp_path: Path, content: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    assert caught.value.problems[-1].startswith("Write a JSON object on each line")


def test_compressed_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    plain, packed = tmp_path / "d.jsonl", tmp_path / "d.jsonl.gz"
    plain.write_bytes(b'{"question": "Q?", "answer": "Rome"}\n')
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_file(packed)[0] == load_file(plain)[0]
    packed.write_bytes(gzip.compress(plain.read_bytes())[:-9])
    with pytest.raises(DatasetError, match=r"d\.jsonl\.gz: the compressed data is truncated"):
        load_file(packed)
    packed.write_bytes(plain.read_bytes())
    with pytest.raises(DatasetError, match=r"d\.jsonl\.gz cannot be read: the file name says"):
        load_file(packed)


def test_names_of_datasets(tmp_path: Path) -> None:
    plain = tmp_path / "squad" / "questions.jsonl"
    plain.parent.mkdir()
    plain.touch()
    odd = tmp_path / "a=b.jsonl"
    odd.touch()
    assert named_file(str(plain)) == ("squad", plain)
    assert named_file(str(odd)) == ("a=b", odd)
    assert named_file(f"mine={plain}") == ("mine", plain)
    assert named_file("hotpot_dev_distractor_v1.json")[0] == "hotpot_dev_distractor_v1"
    assert named_file("hotpot_dev_v1.json.gz")[0] == "hotpot_dev_v1"
    assert named_file("nq/dev.jsonl.zst")[0] == "nq"
