"""The equal-budget rule: a loop meets the best that a baseline does for the same money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from service.evaluation.comparison import (
    Budget,
    MethodRun,
    family,
    judge,
    run_of,
    unproven,
    verdicts,
)
from service.evaluation.rows import Row


def run(name: str, right: int, calls: float = 1, tokens: float = 500, first: int = 0) -> MethodRun:
    """Of 100 questions, those from `first` on are right, `right` of them."""
    scores = {str(n): float(first <= n < first + right) for n in range(100)}
    return MethodRun(name, scores, calls, tokens)


LOOP = run("autorag", 60, calls=5, tokens=4_000)


PLAIN, DEAR = "one_retrieval", "one_retrieval@top_k=20"


def judged(
    *baselines: MethodRun, loop: MethodRun = LOOP, budget: Budget = "tokens"
) -> tuple[str, str | None]:
    verdict = judge(loop, PLAIN, [loop, *baselines], budget)
    return verdict.result, verdict.against


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # a baseline that spends as much and is worse is beaten
        ([run(PLAIN, 35), run(DEAR, 40, tokens=3_900)], ("beats", DEAR)),
        # who only beats the cheap run does not beat the baseline
        ([run(PLAIN, 30), run(DEAR, 58, tokens=3_900)], ("does not beat", DEAR)),
        # the best variant is met, not the dearest
        ([run(PLAIN, 62, tokens=1_500), run(DEAR, 20, tokens=3_900)], ("does not beat", PLAIN)),
        # what costs more than the loop is not met, but for a little
        ([run(PLAIN, 30, tokens=3_200), run(DEAR, 90, tokens=4_300)], ("beats", PLAIN)),
        ([run(PLAIN, 30), run(DEAR, 90, tokens=4_190)], ("does not beat", DEAR)),
        # and proves nothing for the loop
        ([run(PLAIN, 30), run(DEAR, 80, tokens=8_000)], ("open", PLAIN)),
        # a loop that is not better fails, whatever the baseline left unspent
        ([run(PLAIN, 30)], ("open", PLAIN)),
        ([run(PLAIN, 60)], ("does not beat", PLAIN)),
        ([run(PLAIN, 58)], ("does not beat", PLAIN)),
    ],
)
def test_a_loop_meets_the_best_that_a_baseline_does_for_the_same_money(
    runs: list[MethodRun], expected: tuple[str, str]
) -> None:
    assert judged(*runs) == expected


def test_a_budget_that_no_run_spends_leaves_the_question_open() -> None:
    verdict = judge(LOOP, "one_retrieval", [run("one_retrieval", 30)], "llm_calls")
    assert verdict.why == "it is better, but no variant of the baseline uses most of the budget"
    assert (verdict.cost, verdict.spent) == (5, 1)
    assert verdict.difference is not None
    assert verdict.difference.mean == pytest.approx(0.3)


def test_a_loop_that_is_cheaper_than_every_variant() -> None:
    cheap = run("autorag", 60, tokens=100)
    assert judged(run("one_retrieval", 30), loop=cheap) == ("beats", "one_retrieval")
    assert judged(run("one_retrieval", 60), loop=cheap) == ("open", "one_retrieval")


def test_the_two_budgets_are_judged_apart() -> None:
    """Many passages cost tokens and no call; many calls may cost few tokens."""
    votes = run("one_retrieval@top_k=30", 59, calls=1, tokens=9_000)
    plain = run("one_retrieval", 30)
    assert judged(plain, votes, budget="tokens")[0] == "open"
    assert judged(plain, votes, budget="llm_calls")[0] == "does not beat"


def test_only_questions_that_both_were_asked_count() -> None:
    known = {str(n): float(n < 60) for n in range(20, 100)}
    part = MethodRun("one_retrieval", {**known, "gone": 0.0}, 1, 4_000)
    verdict = judge(LOOP, "one_retrieval", [part], "tokens")
    assert verdict.difference is not None
    assert verdict.difference.mean == 0
    assert judged(MethodRun("one_retrieval", {"gone": 1.0}, 1, 1)) == ("open", None)


def test_a_variant_that_was_asked_few_questions_does_not_count() -> None:
    whole = run("one_retrieval@samples=8", 30, tokens=3_900)
    few = MethodRun("one_retrieval@top_k=9", {str(n): 1.0 for n in range(79)}, 1, 3_900)
    assert judged(whole, few) == ("beats", whole.method)
    assert judged() == ("open", None)


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("one_retrieval", "one_retrieval"),
        ("one_retrieval@top_k=10@retriever=bm25", "one_retrieval"),
        ("single/one_retrieval@top_k=10", "one_retrieval"),
        ("complex/autorag", "autorag"),
        ("auto", "auto"),
    ],
)
def test_variants_are_of_one_family(method: str, own: str) -> None:
    assert family(method) == own


def row(method: str, id: str, em: float | None, **more: Any) -> Row:
    given = {
        "question": "Q?", "gold": ("x",), "gold_route": None, "prediction": "x", "answered": True,
        "parts": 0, "parts_found": 0, "dataset": "d", "scores": {"em": em},
    }  # fmt: skip
    return Row(**{**given, **more}, method=method, id=id)


def rows(method: str, ems: Sequence[float | None], **more: Any) -> list[Row]:
    return [row(method, str(n), em, **more) for n, em in enumerate(ems)]


def test_a_run_is_the_means_of_its_rows() -> None:
    own = rows("x", [1, 0, None], llm_calls=2, prompt_tokens=30, completion_tokens=4)
    assert run_of(own, "em") == MethodRun("x", {"0": 1, "1": 0}, 2, 34)


def test_every_loop_meets_both_baselines_at_both_budgets() -> None:
    table = [
        *rows("autorag", [1] * 20, llm_calls=1, prompt_tokens=10),
        *rows("dragin", [0] * 20, llm_calls=1, prompt_tokens=10),
        *rows("one_retrieval", [0] * 20, llm_calls=1, prompt_tokens=10),
        *rows("entropy_gate", [0] * 20, llm_calls=1, prompt_tokens=10),
        *rows("no_retrieval", [1] * 20),
    ]
    found = verdicts(table, "em")
    assert [(v.loop, v.baseline, v.budget, v.result) for v in found] == [
        (loop, baseline, budget, result)
        for loop, result in (("autorag", "beats"), ("dragin", "does not beat"))
        for baseline in ("one_retrieval", "entropy_gate")
        for budget in ("llm_calls", "tokens")
    ]
    assert unproven(found) == {"dragin"}
