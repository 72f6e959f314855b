"""Adaptive-RAG's labels: the route of the cheapest strategy that was right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.core.domain import RouteName
from service.core.errors import InvalidRequest
from service.evaluation.rows import ROWS, Row
from service.workshop.facts.splits import is_held_out
from service.workshop.recipes.router import cheapest_route, is_evaluation, labelled_questions

METHODS = ("no_retrieval", "one_retrieval", "ircot")


def row(method: str, em: float | None = 0.0, number: int = 0, **fields: Any) -> Row:
    values: dict[str, Any] = {
        "id": str(number), "question": f"Question {number}?", "gold": ("x",), "gold_route": None,
        "prediction": "x", "answered": True, "scores": {"em": em}, "parts": 1, "parts_found": 0,
        "dataset": "nq", "method": method, **fields,
    }  # fmt: skip
    return Row(**values)


@pytest.mark.parametrize(
    ("right", "given", "label"),
    [
        (["no_retrieval", "one_retrieval", "ircot"], "complex", "direct"),
        (["one_retrieval", "ircot"], "complex", "single"),
        (["ircot"], "single", "complex"),
        (["no_retrieval"], None, "direct"),
        (["direct"], None, "direct"),
        (["self_ask"], "single", "single"),
        ([], "single", "single"),
        ([], "complex", "complex"),
        ([], "direct", None),
        ([], None, None),
    ],
)
def test_the_cheapest_that_is_right(
    right: list[str], given: RouteName | None, label: RouteName | None
) -> None:
    methods = [*METHODS, *(method for method in right if method not in METHODS)]
    rows = [row(method, float(method in right), gold_route=given) for method in methods]
    assert cheapest_route(rows) == label


def test_a_score_that_does_not_apply_is_not_right() -> None:
    assert cheapest_route([row("no_retrieval", None), row("ircot", 0.5)]) is None


def write(folder: Path, rows: list[Row]) -> Path:
    (folder / ROWS).write_bytes(b"".join(each.as_line() for each in rows))
    return folder


def test_each_side_has_its_own_questions(tmp_path: Path) -> None:
    rows = [row(m, float(m == METHODS[n % 3]), n) for n in range(60) for m in METHODS]
    write(tmp_path, rows)
    assert is_evaluation(tmp_path)
    train, test = (labelled_questions(tmp_path, side) for side in ("train", "test"))
    assert len(train) + len(test) == 60
    assert not any(is_held_out(each.question) for each in train)
    assert all(is_held_out(each.question) for each in test)
    assert {each.question: each.route for each in train + test} == {
        f"Question {n}?": ("direct", "single", "complex")[n % 3] for n in range(60)
    }


def test_a_question_that_a_strategy_has_not_answered_is_left_out(tmp_path: Path) -> None:
    trains = [n for n in range(60) if not is_held_out(f"Question {n}?")]
    whole, lacking, failed = trains[:3]
    rows = [row(m, 1.0, whole) for m in METHODS]
    rows += [row(m, 1.0, lacking) for m in METHODS[:2]]
    rows += [row(m, 1.0, failed, error="x" if m == "ircot" else None) for m in METHODS]
    found = labelled_questions(write(tmp_path, rows), "train")
    assert [each.question for each in found] == [f"Question {whole}?"]


def test_nothing_to_learn_from_is_an_error_that_says_what_is_needed(tmp_path: Path) -> None:
    write(tmp_path, [row("no_retrieval", 1.0, n) for n in range(20)])
    with pytest.raises(InvalidRequest, match="one_retrieval or single, ircot or complex"):
        labelled_questions(tmp_path, "train")
    assert not is_evaluation(tmp_path / "absent")
