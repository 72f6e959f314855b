"""No run is worse than one search: the question itself is searched before the service abstains."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.domain import Answer
from tests.support.asking import body_of
from tests.support.scripted import ScriptStep
from tests.unit.strategies.test_handlers import NOISE, NORMA, QUESTION, relevant, say

pytestmark = pytest.mark.anyio
HITS = {QUESTION: [NORMA, NOISE], "": [NOISE]}


def told(body: Answer) -> list[tuple[str, str | None, str | None]]:
    return [(step.kind, step.query, step.answer) for step in body.steps if step.query]


async def test_a_complex_question_without_evidence_is_searched_as_it_is() -> None:
    script = [
        say("Task: ending", "no"),
        say("Task: refine", "Who made it?", 3),
        *relevant("Norma"),
        say(["Task: answer", QUESTION, "Doc1"], "Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, route="complex")
    assert told(body) == [("retrieve", "Who made it?", None), ("retrieve", QUESTION, "Bellini")]
    assert (body.answer, body.answered, body.stopped_by) == ("Bellini", True, "answer")
    assert [citation.passage_id for citation in body.citations] == ["norma"]


async def test_a_question_that_was_searched_is_not_searched_again() -> None:
    script = [
        say("Task: ending", "no"),
        say("Task: refine", QUESTION.upper(), 3),
        ScriptStep(match="Task: relevance", reply="false", times=None),
    ]
    body = await body_of(script, HITS, QUESTION, route="complex")
    assert told(body) == [("retrieve", QUESTION.upper(), None)]
    assert not body.answered


async def test_memory_that_declines_is_followed_by_a_search() -> None:
    script = [
        say("Task: ending", "yes"),
        say("Task: final", "", 2),
        *relevant("Norma"),
        say(["Task: answer", QUESTION], "Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, route="complex")
    assert [step.kind for step in body.steps] == ["ending", "answer", "retrieve"]
    assert body.answer == "Bellini"


@pytest.mark.parametrize("route", ["single", "complex"])
async def test_autorag_that_found_nothing_searches_once(route: str) -> None:
    script: list[Any] = [
        say(["Task: answer", QUESTION], "Bellini"),
        *relevant("Norma"),
        ScriptStep("Analysis: ?\n\nInitial Query: nobody", times=1),
        ScriptStep("Intermediate Answer: nothing.\n\nFinal Answer: Aida", times=1),
    ]
    hits = {QUESTION: [NORMA, NOISE]}
    body = await body_of(script, hits, QUESTION, route=route, loop="autorag")
    assert [query for _, query, _ in told(body)] == ["nobody", QUESTION]
    assert (body.answer, body.loop, body.answered) == ("Bellini", "autorag", True)
