"""Our scores against the official scripts of SQuAD, HotpotQA, 2WikiMultihopQA, MuSiQue and Auto-RAG
by a record of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from service.evaluation.datasets import GoldQuestion
from service.evaluation.metrics import QuestionResult, normalise, score

RECORD: Final = Path(__file__).with_name("scores_official.json")
CASES: Final = 1_200
# Which of our scores each script's are, in its order.
SCRIPTS: Final = {
    "squad": ("em", "f1"),
    "squad2": ("em", "f1"),
    "hotpotqa": ("em", "f1", "precision", "recall"),
    "2wiki": ("em", "f1", "precision", "recall"),
    "musique": ("em", "f1"),
    "autorag": ("lenient_em",),
}
YES_NO: Final = {"hotpotqa", "2wiki"}
FIRST_ONLY: Final = {"hotpotqa"}  # its file has one gold answer per question
# METHODS.md §1.6: two texts of which normalising leaves nothing are equal; these give them F1 0.
NOTHING_IS_WRONG: Final = {"squad", "hotpotqa", "2wiki"}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def ours(name: str, golds: list[str], said: str) -> list[float | None]:
    answers = tuple(golds[:1] if name in FIRST_ONLY else golds)
    question = GoldQuestion("q", "Q?", answers)
    scores = score(QuestionResult(said, bool(said)), question, yes_no=name in YES_NO)
    return [scores[own] for own in SCRIPTS[name]]


def both_nothing(golds: list[str], said: str) -> bool:
    return not normalise(said) and not all(normalise(gold) for gold in golds)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scores_are_those_of_the_script(name: str, recorded: dict[str, Any]) -> None:
    compared = 0
    for (golds, said), theirs in zip(recorded["cases"], recorded[name], strict=True):
        if not theirs or both_nothing(golds, said):
            continue
        if not golds and said and not normalise(said):
            continue  # an answer without a word is no abstention here, as it is in SQuAD 2.0
        assert ours(name, golds, said) == pytest.approx(theirs, abs=1e-6), (golds, said)
        compared += 1
    assert compared >= 1_000


@pytest.mark.parametrize("name", sorted(NOTHING_IS_WRONG))
def test_where_nothing_is_left_we_follow_the_later_scripts(
    name: str, recorded: dict[str, Any]
) -> None:
    """EM is 1 in all of them, so that F1 0 contradicts it."""
    cases = [
        (golds, said, theirs)
        for (golds, said), theirs in zip(recorded["cases"], recorded[name], strict=True)
        if theirs and said and all(not normalise(text) for text in (said, *golds))
    ]
    assert cases
    for golds, said, theirs in cases:
        assert theirs[:2] == [1, 0]
        assert ours(name, golds, said)[:2] == [1, 1]
