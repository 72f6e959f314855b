"""The baselines that answer with no search, with one, or with one if the model is unsure."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest

from service.core.domain import LoopName, RequestLoop
from service.strategies.gates import entropy, margin, trends
from service.strategies.registry import LOOPS
from tests.support.asking import body_of, passage
from tests.support.opera import NORMA, flags
from tests.support.scripted import ScriptStep

NOISE = [passage(f"p{n}", f"Text {n}.") for n in range(9)]
QUESTION = "Who composed Norma?"


def read(reply: str) -> ScriptStep:
    return ScriptStep(reply, ["Task: answer", "Norma"])


def test_a_request_may_name_exactly_the_loops_that_exist() -> None:
    assert set(get_args(RequestLoop)) == {"default", *LOOPS}
    assert set(get_args(LoopName)) == {"none", *LOOPS}


async def test_one_retrieval_reads_the_best_passages_unjudged() -> None:
    script = [read("Vincenzo Bellini")]
    body = await body_of(script, {"": [NORMA, *NOISE]}, QUESTION, **single("one_retrieval"))
    assert (body.answer, body.usage.llm_calls, body.usage.retrievals) == ("Vincenzo Bellini", 1, 1)
    (step,) = body.steps
    assert step.query == QUESTION
    assert [p.passage_id for p in step.passages] == ["norma", "p0", "p1"]
    assert all(p.kept and p.reason == "not judged" for p in step.passages)
    (citation,) = body.citations
    assert citation.text == "It was composed by Vincenzo Bellini."


def single(loop: str) -> dict[str, str]:
    return {"route": "single", "loop": loop}


# ---- gates over token probabilities: their arithmetic by hand, and what they decide


def logs(*chances: float) -> tuple[float, ...]:
    return tuple(map(math.log, chances))


def test_a_margin_is_the_mean_ratio_of_the_two_best() -> None:
    assert margin([logs(0.8, 0.2)]) == pytest.approx(0.25)
    assert margin([logs(0.5, 0.5), logs(0.9, 0.09)]) == pytest.approx((1 + 0.1) / 2)
    assert margin([(0.0,), logs(0.6, 0.3)]) == pytest.approx(0.25)  # one token was possible


def test_the_entropy_of_what_is_not_reported_is_that_of_one_token() -> None:
    assert entropy(logs(0.5, 0.5)) == pytest.approx(math.log(2))
    assert entropy(logs(0.5, 0.25)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert entropy((0.0,)) == 0.0


def test_a_trend_is_the_smoothed_second_difference() -> None:
    """Entropies 1, 1, 2, 2: the first differences 0, 1, 0; the second ones 1, -1."""
    # 1: mean 1, w = |0 - 1| / (|1 - 1| + |0 - 1|) = 1, so alpha 1, and M = 1
    # -1: mean 0, w = |1 - 0| / (|-1 - 0| + |1 - 0|) = 0.5, so alpha 0.95, and M = -0.95 + 0.05
    assert trends([1, 1, 2, 2]) == pytest.approx([0, 0, 1, -0.9])
    assert trends([1, 2, 3, 4]) == [0, 0, 0, 0]
    assert trends([3.0]) == [0]


def official(entropies: list[float]) -> list[float]:
    """The rules of ETC's code where every word is a content word: tables of first and of second
    differences, in which 0 is nothing, and the smoothing of what is there."""
    size = len(entropies)
    first, second, smooth = [0.0] * size, [0.0] * size, [0.0] * size
    for n in range(1, size):
        first[n] = entropies[n] - entropies[n - 1]
    for n in range(2, size):
        earlier = [first[m] for m in range(n - 1, 0, -1) if first[m] != 0]
        if earlier:
            second[n] = first[n] - earlier[0]
    seen: list[float] = []
    previous = 0.0
    for n in range(2, size):
        if second[n] != 0:
            seen.append(second[n])
            mean = sum(seen) / len(seen)
            far, near = abs(previous - mean), abs(second[n] - mean)
            weight = 0.9 + 0.1 * far / (near + far)
            smooth[n] = weight * second[n] + (1 - weight) * previous
            previous = second[n]
    return smooth


def test_trends_are_those_of_the_published_code() -> None:
    rng = random.Random(0)
    for _ in range(500):
        entropies = [rng.uniform(0, 6) for _ in range(rng.randint(1, 30))]
        assert trends(entropies) == pytest.approx(official(entropies))


SURE, UNSURE = logs(0.95, 0.03), logs(0.5, 0.45)


@pytest.mark.parametrize("gate", ["entropy_gate", "margin_gate", "trend_gate"])
async def test_a_sure_answer_stands_and_what_is_not_known_is_searched(gate: str) -> None:
    sure = {"logprob": math.log(0.9)} if gate == "entropy_gate" else {"best": SURE}
    script = [ScriptStep("Vincenzo Bellini", "Task: closed", **sure)]
    body = await body_of(script, {"": [NORMA]}, QUESTION, **single(gate))
    assert (body.answer, body.usage.retrievals, body.usage.llm_calls) == ("Vincenzo Bellini", 0, 1)
    assert flags(body) == {"closed_book"}
    script = [ScriptStep("no answer found", "Task: closed"), read("Vincenzo Bellini")]
    body = await body_of(script, {"": [NORMA]}, QUESTION, **single(gate))
    assert (body.answer, body.usage.retrievals) == ("Vincenzo Bellini", 1)
