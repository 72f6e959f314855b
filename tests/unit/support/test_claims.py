"""The checks of answers find what is wrong: a right answer, spoilt in one way at a time."""

from __future__ import annotations

from typing import Any

from service.answer.events import AnswerReady, RetrievedPassage
from service.core.domain import Answer
from service.core.settings.server import AnswerSettings
from service.prompts.templates import TemplateSet
from tests.support.asking import events_of, passage
from tests.support.claims import Told, bears, holds, problems
from tests.support.scripted import ScriptStep

COMPACT = TemplateSet("compact")
NONE_TEXT = AnswerSettings().no_answer_text
HITS = {"": [passage("p1", "Norma is an opera by Vincenzo Bellini.", "Norma")]}


async def told() -> Told:
    script = [ScriptStep("true"), ScriptStep("Vincenzo Bellini")]
    events = await events_of(script, HITS, "Who wrote Norma?", route="single")
    (body,) = [event.body for event in events if isinstance(event, AnswerReady)]
    return Told(events, body)


def found(given: Told, **changes: Any) -> str:
    body = given.body.model_copy(update=changes)
    return " / ".join(problems(Told(given.events, body), COMPACT, NONE_TEXT))


async def test_each_kind_of_wrong_is_found() -> None:
    right = await told()
    assert found(right) == ""
    (step,), (citation,) = right.body.steps, right.body.citations

    def with_step(**changes: Any) -> str:
        return found(right, steps=[step.model_copy(update=changes)])

    assert "do not fold" in found(right, answer="Rossini")
    assert "nothing bears" in with_step(answer="Rossini") + found(right, answer="Rossini")
    assert "refusal" in found(right, answer="It is not mentioned.")
    assert "empty" in found(right, answer=" ")
    assert "not answered, yet" in found(right, answered=False)
    assert "borrows" in found(right, answer="Paul Renner")
    other = citation.model_copy(update={"passage_id": "p2"})
    assert "was not shown" in found(right, citations=[other])
    shifted = citation.model_copy(update={"start": 3})
    assert "does not say" in found(right, citations=[shifted])
    assert "bears none" in found(
        right, answer="Verdi", steps=[step.model_copy(update={"answer": "Verdi"})]
    )
    for flag in (
        "no_evidence",
        "closed_book",
        "refine_loop",
        "escalated",
        "unsupported",
        "declined",
        "no_new_evidence",
        "fallback_direct",
        "shortened",
    ):
        if (
            flag
            in Answer.model_json_schema()["$defs"]["Step"]["properties"]["flags"]["items"]["enum"]
        ):
            assert f"{flag} is not true" in with_step(flags=[flag]), flag


def shown(text: str) -> RetrievedPassage:
    return RetrievedPassage(passage_id="p", title="Norma", text=text, rank=1, score=1.0)


def test_what_bears_an_answer() -> None:
    assert holds("It has 14,782 people.", "14782")
    assert holds("Born on 26 July 1922 in Tulsa.", "July 26, 1922")
    assert not holds("He is well known.", "no")
    two = [shown("By Vincenzo Bellini, in 1831."), shown("It was given at La Scala.")]
    assert bears(two, "Vincenzo Bellini and La Scala", "Who and where?")
    assert not bears(two, "Vincenzo Bellini and Verdi", "Who and where?")
    assert bears(two[:1], "Vincenzo Bellini and La Scala", "Who and where?")
    assert bears(two, "The opera Norma was written by Vincenzo Bellini.", "Who wrote Norma?")
    assert not bears(two, "The opera Norma was written by Gaetano Rossi.", "Who wrote Norma?")
    assert bears(two, "It is Bellini's opera and was given at La Scala.", "What is Norma?")
    assert bears(two, "Yes.", "Is Norma by Bellini?")
