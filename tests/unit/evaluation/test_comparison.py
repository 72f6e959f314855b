"""The equal-budget rule, and the intervals and tests behind it, against values that are known in
closed form."""

from __future__ import annotations

import math
from random import Random

import pytest

from service.evaluation.comparison import (
    FLIPS,
    LEVEL,
    Budget,
    MethodRun,
    difference,
    flips_of,
    holm,
    interval,
    judge,
    randomisation,
    unproven,
    verdicts,
)
from service.evaluation.means import by_dataset
from tests.unit.evaluation.evaluating import rows


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


def test_every_loop_meets_both_baselines_at_both_budgets() -> None:
    table = [
        *rows("autorag", [1] * 20, llm_calls=1, prompt_tokens=10),
        *rows("dragin", [0] * 20, llm_calls=1, prompt_tokens=10),
        *rows("one_retrieval", [0] * 20, llm_calls=1, prompt_tokens=10),
        *rows("entropy_gate", [0] * 20, llm_calls=1, prompt_tokens=10),
        *rows("no_retrieval", [1] * 20),
    ]
    found = verdicts(by_dataset(table)["d"], "f1")
    assert [(v.loop, v.baseline, v.budget, v.result) for v in found] == [
        (loop, baseline, budget, result)
        for loop, result in (("autorag", "beats"), ("dragin", "does not beat"))
        for baseline in ("one_retrieval", "entropy_gate")
        for budget in ("llm_calls", "tokens")
    ]
    assert unproven(found) == {"dragin"}


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    random = Random(1)
    samples = [[float(random.random() < 0.3) for _ in range(60)] for _ in range(200)]
    held = sum(found.low <= 0.3 <= found.high for found in (interval(s, 300) for s in samples))
    assert 178 <= held <= 199


def test_few_questions_that_are_all_right_do_not_prove_perfection() -> None:
    """Wilson's interval of 20 of 20: 20 / (20 + 1.96²) = 0.839."""
    found = interval([1.0] * 20)
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.8389, abs=1e-4)
    wrong = interval([0.0] * 20)
    assert (wrong.low, wrong.high) == (0.0, pytest.approx(1 - 0.8389, abs=1e-4))
    half = interval([0.5] * 4)
    assert (half.low, half.high) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(10, 0, 2 / 2**10), (8, 2, 2 * 56 / 2**10), (5, 5, 1.0), (9, 3, 2 * 299 / 2**12), (0, 0, 1.0)],
)
def test_right_and_wrong_are_compared_by_the_exact_test(better: int, worse: int, p: float) -> None:
    """Two-sided McNemar's test on the discordant questions, as in its tables."""
    deltas = [1.0] * better + [-1.0] * worse + [0.0] * 30
    assert randomisation(deltas) == pytest.approx(p)
    assert randomisation([-delta for delta in deltas]) == pytest.approx(p)


def test_random_signs_come_near_all_signs() -> None:
    """Fisher's test over all 2¹² signs of Darwin's kind of paired differences."""
    deltas = [0.4, -0.1, 0.3, 0.25, 0.6, -0.2, 0.5, 0.15, 0.35, -0.05, 0.45, 0.1]
    seen = abs(math.fsum(deltas))
    sums = [
        abs(math.fsum(d if signs >> place & 1 else -d for place, d in enumerate(deltas)))
        for signs in range(2**12)
    ]
    exact = sum(total >= seen - 1e-9 for total in sums) / 2**12
    assert randomisation(deltas) == pytest.approx(exact, abs=0.004)


def test_a_clear_difference_is_significant_among_any_number_of_pairs() -> None:
    deltas = [0.5 + n / 100 for n in range(40)]
    assert randomisation(deltas) == randomisation(deltas, flips_of(100)) == 1 / (FLIPS + 1)
    pairs = 600
    p = randomisation(deltas, flips_of(pairs))
    assert holm([p, *[1.0] * (pairs - 1)])[0] < 1 - LEVEL


def test_a_method_that_is_better_on_the_same_questions() -> None:
    ours = [1.0] * 60 + [0.0] * 40
    theirs = [1.0] * 40 + [0.0] * 60
    found = difference(ours, theirs)
    assert found.mean == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - 1.96 * 0.04, abs=0.015)
    assert found.better
    assert not difference(theirs, ours).better


def test_many_tests_are_corrected_step_by_step() -> None:
    """The example of Holm's procedure: each is multiplied by the number of those left."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
