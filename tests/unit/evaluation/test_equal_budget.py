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


def judged(
    *baselines: MethodRun, loop: MethodRun = LOOP, budget: Budget = "tokens"
) -> tuple[str, str | None]:
    verdict = judge(loop, "one_retrieval", [loop, *baselines], budget)
    return verdict.result, verdict.against


def test_a_loop_beats_a_baseline_that_spends_as_much_and_is_worse() -> None:
    spends = run("one_retrieval@top_k=20", 40, tokens=3_900)
    assert judged(run("one_retrieval", 35), spends) == ("beats", spends.method)


def test_a_loop_that_only_beats_the_cheap_run_does_not_beat_the_baseline() -> None:
    assert judged(run("one_retrieval", 30), run("one_retrieval@top_k=20", 58, tokens=3_900)) == (
        "does not beat", "one_retrieval@top_k=20",
    )  # fmt: skip


def test_the_best_variant_is_met_and_not_the_dearest() -> None:
    better = run("one_retrieval@top_k=5", 62, tokens=1_500)
    worse = run("one_retrieval@top_k=20", 20, tokens=3_900)
    assert judged(better, worse) == ("does not beat", better.method)


def test_what_costs_more_than_the_loop_is_not_met() -> None:
    dear = run("one_retrieval@top_k=50", 90, tokens=4_300)
    assert judged(run("one_retrieval", 30, tokens=3_200), dear) == ("beats", "one_retrieval")
    assert judged(run("one_retrieval", 30), run("one_retrieval@top_k=50", 90, tokens=4_190)) == (
        "does not beat", "one_retrieval@top_k=50",
    )  # fmt: skip


def test_what_costs_more_than_the_loop_proves_nothing_for_it() -> None:
    dear = run("one_retrieval@samples=16", 80, tokens=8_000)
    assert judged(run("one_retrieval", 30), dear) == ("open", "one_retrieval")


def test_a_budget_that_no_run_spends_leaves_the_question_open() -> None:
    assert judged(run("one_retrieval", 30)) == ("open", "one_retrieval")
    verdict = judge(LOOP, "one_retrieval", [run("one_retrieval", 30)], "llm_calls")
    assert verdict.why == "it is better, but no variant of the baseline uses most of the budget"
    assert (verdict.cost, verdict.spent) == (5, 1)
    assert verdict.difference is not None
    assert verdict.difference.mean == pytest.approx(0.3)


def test_a_loop_that_is_not_better_fails_whatever_the_baseline_left_unspent() -> None:
    assert judged(run("one_retrieval", 60)) == ("does not beat", "one_retrieval")
    assert judged(run("one_retrieval", 58)) == ("does not beat", "one_retrieval")


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
