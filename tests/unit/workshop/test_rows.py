"""Rows for training: what is a row, what may be learnt, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidRequest
from service.workshop.rows import TrainingRow, read_lines, read_rows_of
from service.workshop.splits import Split, canonical_form, is_held_out, side_of

NAMES = [f"Film {number}" for number in range(100)]
KNOWN = next(name for name in NAMES if not is_held_out(name))
HELD_OUT = next(name for name in NAMES if is_held_out(name))


def row(**changes: Any) -> dict[str, Any]:
    return {
        "task": "route",
        "question": "Who wrote Norma?",
        "messages": [
            message("user", "Query: Who wrote Norma?"),
            message("assistant", "single-step question", True),
        ],
        "provenance": {"pipeline": "hanrag", "teacher": "rules", "item": "1", "titles": [KNOWN]},
        **changes,
    }


def written(path: Path, *rows: Any) -> Path:
    file = path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return file


def provenance(**changes: Any) -> dict[str, Any]:
    return {**row()["provenance"], **changes}


def message(role: str, content: str, learn: bool = False) -> dict[str, Any]:
    return {"role": role, "content": content, "learn": learn}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task": "Route!"}, "task"),
        ({"question": ""}, "question"),
        ({"loss": 1}, "loss"),
        ({"messages": [message("user", "x")]}, "messages"),
        ({"messages": [message("user", "x", True), message("assistant", "y")]}, "the user cannot"),
        ({"messages": [message("user", "x"), message("assistant", " ", True)]}, "empty message"),
        ({"messages": [message("user", "x"), message("assistant", "y")]}, "no message"),
        ({"messages": [message("assistant", "x", True), message("user", "y")]}, "alternate"),
        (
            {"messages": [message("user", "a"), message("assistant", "b", True),
                          message("user", "c")]},
            "the last message",
        ),
    ],
)  # fmt: skip
def test_what_is_no_row_is_named_with_its_line(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    file = written(tmp_path, row(), row(**changes))
    with pytest.raises(InvalidRequest) as error:
        list(read_rows_of(TrainingRow, file))
    assert f"{file}:2: " in error.value.detail
    assert problem in error.value.detail


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row()) + "\n\n{cut", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"rows\.jsonl:3: Invalid JSON"):
        list(read_rows_of(TrainingRow, file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"absent\.jsonl: cannot be read: "):
        list(read_rows_of(TrainingRow, tmp_path / "absent.jsonl"))


def test_a_row_is_used_on_its_side_alone(tmp_path: Path) -> None:
    people, tests = provenance(titles=[], written=True), [KNOWN, HELD_OUT]
    for own, told in [
        (row(provenance=provenance(titles=tests)), "made from what is held out: .* neither"),
        (row(provenance=provenance(titles=tests, answer_titles=[HELD_OUT])), "only to test"),
        (row(provenance=provenance(titles=tests, answer_titles=tests)), "neither"),
        (row(question=HELD_OUT, provenance=people), "only to test"),
    ]:
        file = written(tmp_path, own)
        with pytest.raises(InvalidRequest, match=f":1: .*{told}"):
            list(read_rows_of(TrainingRow, file))
        if told == "only to test":
            assert len(list(read_rows_of(TrainingRow, file, "test"))) == 1
    assert TrainingRow.model_validate(row(question=KNOWN, provenance=people)).side == "train"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Who  wrote “Heat”?", "who wrote heat"),
        ("Straße (film)", "strasse film"),
        ("ＦＵＬＬ width", "full width"),
        ("snake_case it's", "snake_case it s"),
        ("  ", ""),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert canonical_form(text) == normal


KNOWN, HELD_OUT = "Canberra", "Paris"


@pytest.mark.parametrize(
    ("titles", "answers", "written", "side"),
    [
        ([KNOWN], [KNOWN], None, "train"),
        ([], [], None, "train"),
        ([KNOWN], [], "Canberra?", "train"),
        ([KNOWN, HELD_OUT], [HELD_OUT], None, "test"),  # what leads there may be of either side
        ([KNOWN, HELD_OUT], [KNOWN], None, None),
        ([KNOWN, HELD_OUT], [KNOWN, HELD_OUT], None, None),
        ([HELD_OUT], [], None, None),
        ([], [], "Paris?", "test"),
        ([KNOWN], [KNOWN], "paris", "test"),
    ],
)
def test_what_may_train_and_what_may_test(
    titles: list[str], answers: list[str], written: str | None, side: Split | None
) -> None:
    assert side_of(titles, answers, written) == side


def test_counts_of_the_design(shared_data: Path) -> None:
    wiki, squad = (
        [row["title"] for row in read_lines(shared_data / name / "corpus.jsonl")]
        for name in ("2wikimultihopqa", "squad")
    )
    articles = set(squad)
    assert sum(map(is_held_out, wiki)) == 1253
    assert sum(is_held_out(title) for title in articles) == 7
    assert len(articles) == 24
