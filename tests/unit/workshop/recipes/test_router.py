"""`train router`: Adaptive-RAG's labels, the head, and its calibration by hand."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

np = need("numpy")
torch = need("torch", "transformers", "accelerate")

from service.core.domain import RouteName
from service.core.errors import InvalidRequest
from service.encoders.router import RouterCard
from service.evaluation.rows import ROWS, Row
from service.workshop.recipes.router import (
    RouterNetwork,
    RouterSettings,
    cheapest_route,
    fit_temperature,
    questions_of,
)
from service.workshop.splits import is_held_out
from tests.unit.workshop.recipes.rows import write_data

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


def write(folder: Path, rows: list[Row]) -> Path:
    (folder / ROWS).write_bytes(b"".join(each.as_line() + b"\n" for each in rows))
    return folder


def test_each_side_has_its_own_questions(tmp_path: Path) -> None:
    rows = [row(m, float(m == METHODS[n % 3]), n) for n in range(60) for m in METHODS]
    write(tmp_path, rows)
    train, test = (questions_of(tmp_path, side) for side in ("train", "test"))
    assert len(train) + len(test) == 60
    assert not any(is_held_out(each.question) for each in train)
    assert all(is_held_out(each.question) for each in test)
    assert {each.question: each.route for each in train + test} == {
        f"question {n}": ("direct", "single", "complex")[n % 3] for n in range(60)
    }


def test_a_question_that_a_strategy_has_not_answered_is_left_out(tmp_path: Path) -> None:
    trains = [n for n in range(60) if not is_held_out(f"Question {n}?")]
    whole, lacking, failed = trains[:3]
    rows = [row(m, 1.0, whole) for m in METHODS]
    rows += [row(m, 1.0, lacking) for m in METHODS[:2]]
    rows += [row(m, 1.0, failed, error="x" if m == "ircot" else None) for m in METHODS]
    found = questions_of(write(tmp_path, rows), "train")
    assert [each.question for each in found] == [f"question {whole}"]


def test_nothing_to_learn_from_is_an_error_that_says_what_is_needed(tmp_path: Path) -> None:
    write(tmp_path, [row("no_retrieval", 1.0, n) for n in range(20)])
    with pytest.raises(InvalidRequest, match="one_retrieval or single, ircot or complex"):
        questions_of(tmp_path, "train")


def test_what_is_no_route_is_refused(tmp_path: Path) -> None:
    path, held_out = write_data("router", tmp_path)
    assert {each.route for each in questions_of(path, "train")} == {"single", "complex"}
    assert len(questions_of(held_out, "test")) == 20
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    row["messages"][-1]["content"] = "a hard one"
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="'a hard one' is not a route"):
        questions_of(path, "train")
    row["task"] = "merge"
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="no rows of task route"):
        questions_of(path, "train")


def test_the_head_gives_what_the_network_gave() -> None:
    torch.manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(20, 384))
    network = RouterNetwork(RouterSettings(), vectors)
    logits = torch.tensor(network.logits(vectors))
    card = RouterCard(layers=3, longest=128, temperature=1.0)
    chances = network.head(card).probabilities(vectors.numpy())
    assert torch.allclose(torch.tensor(chances), logits.softmax(1), atol=1e-5)


@pytest.mark.parametrize(("right", "margin"), [(3, 6.0), (3, 0.2), (2, 4.0)])
def test_the_temperature_makes_the_mean_probability_the_share_that_is_right(
    right: int, margin: float
) -> None:
    """Of four rows with one margin, `right` are right: the best probability is right / 4, so the
    margin over the temperature is its logit."""
    logits = np.array([[margin, 0.0]] * 4)
    labels = [0] * right + [1] * (4 - right)
    logit = math.log(right / (4 - right)) if right > 2 else 0.0
    wanted = margin / logit if logit else 20.0
    assert fit_temperature(logits, labels) == pytest.approx(wanted, rel=1e-3)
