"""Self-consistency: the most frequent of several answers of the reader (METHODS.md §7.7)."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import Token, Withdraw
from service.answer.request import parse_request
from service.core.errors import RevelatorError
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.retrieval.base import anyone
from service.strategies.reader import SAMPLE_TEMPERATURE
from service.strategies.registry import LOOPS, SAMPLED
from tests.support.asking import ScriptedRetriever, body_in, body_of, events_of, passage
from tests.support.opera import NORMA
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator, ScriptStep

HITS = {"": [NORMA]}
QUESTION = "Who composed Norma?"
ONE = {"route": "single", "loop": "one_retrieval"}


def sample(reply: str, seed: int, **more: Any) -> ScriptStep:
    heat = SAMPLE_TEMPERATURE if seed else 0.0

    def is_it(request: GenerationRequest) -> bool:
        return (request.seed, request.temperature) == (seed, heat)

    return ScriptStep(reply, is_it, **more)


async def test_the_samples_outvote_the_first_answer_and_are_counted() -> None:
    script = [
        sample("Verdi", 0), sample("Vincenzo Bellini", 1), sample("the Vincenzo Bellini.", 2),
    ]  # fmt: skip
    events = await events_of(script, HITS, QUESTION, samples=3, **ONE)
    body = body_in(events)
    assert (body.answer, body.answered) == ("Vincenzo Bellini", True)
    assert (body.usage.llm_calls, body.usage.retrievals) == (3, 1)
    assert body.steps[-1].flags == ["outvoted"]
    assert [c.passage_id for c in body.citations] == ["norma"]
    shown = [event for event in events if isinstance(event, Token | Withdraw)]
    assert [event.event for event in shown] == ["token", "withdraw", "token"]


CUT = {"finish": "length"}
SURE = [ScriptStep("Vincenzo Bellini", "Task: closed", logprob=0.0)]
UNSURE = [ScriptStep("Verdi", "Task: closed", logprob=-9.0)]


@pytest.mark.parametrize(
    ("script", "options", "answer", "calls"),
    [
        # a first answer that wins or draws stands
        ([sample("Bellini", 0), sample("Verdi", 1), sample("Rossini", 2)], {"samples": 3},
         "Bellini", 3),
        # what declines or is cut does not vote
        ([sample("Bellini", 0), sample("no answer found", 1), sample("no answer found", 2),
          sample("Verdi and", 3, **CUT), sample("Verdi and", 4, **CUT)], {"samples": 5},
         "Bellini", 5),
        # the gate decides on its greedy answer, and samples the second
        (SURE, {"samples": 3, "loop": "entropy_gate"}, "Vincenzo Bellini", 1),
        ([*UNSURE, *(sample("Bellini", seed) for seed in range(3))],
         {"samples": 3, "loop": "entropy_gate"}, "Bellini", 4),
    ],
)  # fmt: skip
async def test_which_answer_stands(
    script: list[ScriptStep], options: dict[str, Any], answer: str, calls: int
) -> None:
    body = await body_of(script, HITS, QUESTION, **{**ONE, **options})
    assert (body.answer, body.usage.llm_calls) == (answer, calls)
    assert "outvoted" not in body.steps[-1].flags


async def test_at_a_limit_those_vote_that_there_are() -> None:
    script = [sample("Verdi", 0), sample("Bellini", 1), sample("Bellini", 2)]
    limits = {"max_llm_calls": 4}  # one of which is kept for the answer
    body = await body_of(script, HITS, QUESTION, samples=9, limits=limits, **ONE)
    assert (body.answer, body.stopped_by, body.usage.llm_calls) == ("Bellini", "budget", 3)


async def test_sub_answers_are_not_sampled_and_the_merged_answer_is() -> None:
    script = [
        ScriptStep('{"decomposition": ["Who wrote A?", "Who wrote B?"]}', "Task: decompose"),
        ScriptStep("Ann", "Question: Who wrote A?"),
        ScriptStep("Bob", "Question: Who wrote B?"),
        ScriptStep("Ann and Bob", "Task: merge", times=2),
    ]
    hits = {"A": [passage("a", "A is by Ann.")], "B": [passage("b", "B is by Bob.")]}
    asked = {"route": "compound", "loop": "one_retrieval", "samples": 2}
    body = await body_of(script, hits, "Who wrote A and B?", **asked)
    assert (body.answer, body.usage.llm_calls) == ("Ann and Bob", 5)


@pytest.mark.parametrize("loop", sorted(LOOPS))
async def test_every_loop_samples_or_refuses(loop: str) -> None:
    engine = ScriptedGenerator()
    asked = parse_request({"question": QUESTION, "loop": loop, "samples": 2})
    retriever = ScriptedRetriever(HITS)
    async with open_scripted(
        Settings(), engines={"default": engine}, retriever=retriever
    ) as runtime:
        if loop in SAMPLED:
            assert (await runtime.prepare(asked, anyone)).samples == 2
        else:
            with pytest.raises(RevelatorError, match=r"samples: the loop|cannot run"):
                await runtime.prepare(asked, anyone)
