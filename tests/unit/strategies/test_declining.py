"""A reader that declines has found nothing: no answer, whatever was streamed, and the flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from service.answer.events import AnswerReady, BaseEvent, Token, Withdraw
from service.core.domain import Answer, Passage
from tests.support.asking import body_of, events_of, passage
from tests.support.scripted import ScriptStep

pytestmark = pytest.mark.anyio
NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
HITS: Mapping[str, Sequence[Passage]] = {"": [NORMA]}
QUESTION = "Where was the composer of Norma born?"
REFUSALS = ["no answer found", "The documents do not mention where he was born.", "Unknown"]


def say(match: str | list[str], reply: str) -> ScriptStep:
    return ScriptStep(reply, match=match)


RELEVANT = ScriptStep("true", match="Task: relevance", times=None)


def standing(events: list[BaseEvent]) -> str:
    """What a watcher of the stream has before him at the end, less the service's own words."""
    text = ""
    for event in events:
        if isinstance(event, Withdraw) and event.role == "answer":
            text = ""
        elif isinstance(event, Token) and event.role == "answer":
            text += event.text
    return text


def flags_of(body: Answer) -> list[str]:
    return [flag for step in body.steps for flag in step.flags]


async def ask(script: list[ScriptStep], **options: Any) -> Answer:
    return await body_of(script, HITS, QUESTION, **options)


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_single(refusal: str) -> None:
    script = [RELEVANT, say("Task: answer", refusal)]
    events = await events_of(script, HITS, QUESTION, route="single")
    (body,) = [event.body for event in events if isinstance(event, AnswerReady)]
    assert not body.answered
    assert body.citations == []
    assert body.steps[0].answer is None
    assert flags_of(body) == ["declined"]
    assert body.usage.llm_calls == 2  # declining is a reply: it is not asked for again
    assert standing(events) == body.answer == "No answer was found in the passages."


async def test_a_sub_answer_counts_as_not_found() -> None:
    script = [
        say("Task: ending", "no"),
        say("Task: refine", "Who composed Norma?"),
        RELEVANT,
        say("Task: answer", "Unknown"),
        say(["Task: refine", "no answer found"], "Which composer wrote Norma?"),
        say("Task: answer", "Vincenzo Bellini"),
        say("Task: ending", "yes"),
        say("Task: final", "Not specified."),
    ]
    body = await ask(script, route="complex")
    assert not body.answered
    answers = [step.answer for step in body.steps if step.kind == "retrieve"]
    assert answers == [None, "Vincenzo Bellini"]
    assert [step.flags for step in body.steps if "declined" in step.flags] != []
    assert body.steps[-1].kind == "answer"
    assert "declined" in body.steps[-1].flags


async def test_a_merge_that_lacks_a_part_is_an_answer_and_one_that_lacks_all_is_none() -> None:
    parts = '{"thought": "two", "decomposition": ["Who composed Norma?", "Who sang Norma?"]}'
    found = [
        say("Task: decompose", parts),
        RELEVANT,
        say(["Task: answer", "composed"], "Vincenzo Bellini"),
        say(["Task: answer", "sang"], "N/A"),
    ]
    told = "Vincenzo Bellini composed Norma. The documents do not mention who sang it."
    body = await ask([*found, say("Task: merge", told)], route="compound")
    assert (body.answered, body.answer) == (True, told)
    body = await ask([*found, say("Task: merge", "no answer found")], route="compound")
    assert not body.answered


ALOUD = "Let me think: the answer would be Bellini."


async def test_what_a_reply_ends_in_is_the_answer_if_a_passage_has_it() -> None:
    script = [RELEVANT, say("Task: answer", ALOUD)]
    body = await body_of(script, {"": [NORMA]}, QUESTION, route="single")
    assert (body.answer, body.steps[-1].flags) == ("Bellini", ["repaired"])
    assert [citation.passage_id for citation in body.citations] == ["norma"]


@pytest.mark.parametrize("end", ["Verdi", "Norma", "an opera " * 5])
async def test_a_reply_that_is_not_used_is_told(end: str) -> None:
    """No passage has it, the question has it, or it is no short answer."""
    script = [RELEVANT, *[say("Task: answer", ALOUD.replace("Bellini", end))] * 2]
    body = await body_of(script, {"": [NORMA]}, QUESTION, route="single")
    assert (body.answered, body.steps[-1].flags) == (False, ["unread_answer"])
