"""The baselines that answer with no search, with one, or with one if the model is unsure."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from service.answer.events import BaseEvent, QueryIssued, Token, Withdraw
from service.core.domain import Answer, LoopName, RequestLoop
from service.strategies.registry import LOOPS
from tests.support.asking import body_of, events_of, passage
from tests.support.scripted import ScriptStep

pytestmark = pytest.mark.anyio
NORMA = passage("norma", "Norma is an opera. It was composed by Vincenzo Bellini.", "Norma")
NOISE = [passage(f"p{n}", f"Text {n}.") for n in range(9)]
QUESTION = "Who composed Norma?"


def closed(reply: str, probability: float = 1.0) -> ScriptStep:
    return ScriptStep(reply, "Task: closed", logprob=math.log(probability))


def read(reply: str) -> ScriptStep:
    return ScriptStep(reply, ["Task: answer", "Norma"])


def flags(body: Answer) -> set[str]:
    return {flag for step in body.steps for flag in step.flags}


def test_a_request_may_name_exactly_the_loops_that_exist() -> None:
    assert set(get_args(RequestLoop)) == {"default", *LOOPS}
    assert set(get_args(LoopName)) == {"none", *LOOPS}


async def test_no_retrieval_answers_from_memory_and_the_answer_stands() -> None:
    body = await body_of([closed("Bellini")], {"": [NORMA]}, QUESTION, **single("no_retrieval"))
    assert (body.answer, body.answered, body.loop) == ("Bellini", True, "no_retrieval")
    assert (body.usage.retrievals, body.usage.llm_calls, body.usage.steps) == (0, 1, 0)
    assert flags(body) == {"closed_book"}
    assert body.citations == []


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


async def test_a_sure_model_is_not_searched_for() -> None:
    script = [closed("Vincenzo Bellini", 0.9)]
    body = await body_of(script, {"": [NORMA]}, QUESTION, **single("entropy_gate"))
    assert (body.answer, body.answered) == ("Vincenzo Bellini", True)
    assert (body.usage.retrievals, body.usage.llm_calls) == (0, 1)
    assert flags(body) == {"closed_book"}


async def test_an_unsure_model_searches_once_and_its_first_answer_is_withdrawn() -> None:
    script = [closed("Giuseppe Verdi", 0.5), read("Vincenzo Bellini")]
    events = await events_of(script, {"": [NORMA]}, QUESTION, **single("entropy_gate"))
    assert texts(events) == ["Giuseppe", " Verdi", "-", "?", "Vincenzo", " Bellini"]
    body = next(event.body for event in events if event.event == "answer")  # type: ignore[attr-defined]
    assert body.answer == "Vincenzo Bellini"
    assert [(step.kind, step.answer) for step in body.steps] == [
        ("answer", None), ("retrieve", "Vincenzo Bellini"),
    ]  # fmt: skip
    assert [c.passage_id for c in body.citations] == ["norma"]
    assert flags(body) == set()


async def test_a_model_that_declines_is_unsure_and_nothing_found_is_no_answer() -> None:
    body = await body_of([closed("no answer found")], {}, QUESTION, **single("entropy_gate"))
    assert not body.answered
    assert flags(body) == {"declined", "no_evidence"}


@pytest.mark.parametrize("loop", ["no_retrieval", "one_retrieval", "entropy_gate"])
async def test_each_answers_the_parts_of_a_compound_question(loop: str) -> None:
    script = [
        ScriptStep('{"decomposition": ["Who wrote A?", "Who wrote B?"]}', "Task: decompose"),
        ScriptStep("Ann", "Question: Who wrote A?", times=None),
        ScriptStep("Bob", "Question: Who wrote B?", times=None),
        ScriptStep("Ann and Bob", "Task: merge"),
    ]
    hits = {"A": [passage("a", "A is by Ann.")], "B": [passage("b", "B is by Bob.")]}
    body = await body_of(script, hits, "Who wrote A and B?", route="compound", loop=loop)
    assert (body.answer, body.answered) == ("Ann and Bob", True)
    assert bool(body.citations) == (loop == "one_retrieval")


def single(loop: str) -> dict[str, str]:
    return {"route": "single", "loop": loop}


def texts(events: list[BaseEvent]) -> list[str]:
    """Tokens, `-` for a withdrawal, `?` for a query."""
    shown = {Withdraw: "-", QueryIssued: "?"}
    kinds = (Token, Withdraw, QueryIssued)
    return [
        event.text if isinstance(event, Token) else shown[type(event)]
        for event in events
        if isinstance(event, kinds)
    ]
