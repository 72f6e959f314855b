"""Surveys of documents on the route `compound`: questions that no single passage answers."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import RouteChosen
from service.core.domain import Answer, Passage
from service.core.settings import Settings
from service.engines.base import Capabilities
from service.strategies.routes import MAX_DOCUMENTS, SURVEYED
from service.strategies.rules import LONGEST_SURVEY, asks_for_survey
from tests.support.asking import (
    ScriptedRetriever,
    answer_stream,
    body_of,
    events_of,
    inquiry,
    passage,
)
from tests.support.opera import flags, relevant, say
from tests.support.scripted import ScriptedGenerator, ScriptStep

Hits = dict[str, list[Passage]]
QUESTION = "Summarise the rules on leave."
READS = "The passages below are from one document."
MERGES = "Combine the sub-answers"
LEAVE = [
    passage("leave#1", "Employees have 25 days of annual leave.", "Leave › Annual"),
    passage("leave#2", "Parental leave lasts 14 weeks.", "Leave › Parental"),
]
SITES = passage("sites", "Staff in Porto have 27 days of annual leave.", "Sites")
NOISE = passage("menu", "The canteen serves lunch from noon.", "Canteen")
HITS = {"": [LEAVE[0], SITES, NOISE, LEAVE[1]]}
FROM_LEAVE = "Employees have 25 days of annual leave, and parental leave lasts 14 weeks."
FROM_SITES = "Staff in Porto have 27 days of annual leave."
TOLD = "Annual leave is 25 days, 27 in Porto; parental leave lasts 14 weeks."


def reading(title: str, reply: object, times: int | None = 1, **step: object) -> ScriptStep:
    return ScriptStep(match=[READS, f'"{title}'], reply=reply, times=times, **step)  # type: ignore[arg-type]


def script(merged: str = TOLD) -> list[ScriptStep]:
    return [
        reading("Leave", FROM_LEAVE),
        reading("Sites", FROM_SITES),
        reading("Canteen", "no answer found"),
        say([MERGES, f"({LEAVE[0].title[:5]})", f"Sub-answer 2: {FROM_SITES}"], merged),
    ]


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        (QUESTION, True),
        ("Could you give me a short overview of the handbook?", True),
        ("What is this about?", True),
        ("Please list all offices in Portugal.", True),
        ("Enumerate every product that we rent out", True),
        ("List the capital of Peru.", False),
        ("Translate the handbook into French.", False),
        ("Is there a list of all offices?", False),
        (f"Summarise this text: {'word ' * (LONGEST_SURVEY // 5)}", False),
    ],
)
def test_what_asks_for_a_survey(question: str, wanted: bool) -> None:
    assert asks_for_survey(question) is wanted


async def test_each_document_is_read_in_a_step_and_the_answers_are_merged() -> None:
    retriever, engine = ScriptedRetriever(HITS), ScriptedGenerator(script())
    asked = inquiry(engine, retriever, QUESTION)
    events = [event async for event in answer_stream(asked)]
    engine.assert_finished()
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("compound", "rule")
    body: Answer = events[-2].body  # type: ignore[attr-defined]
    assert (body.answer, body.answered, body.supported) == (TOLD, True, True)
    assert [(step.id, step.kind) for step in body.steps] == [
        ("1", "route"), ("2", "retrieve"), ("3.1", "retrieve"), ("3.2", "retrieve"),
        ("3.3", "retrieve"), ("4", "merge"),
    ]  # fmt: skip
    assert [request.top_k for request in retriever.requests] == [SURVEYED]
    read = body.steps[2:5]
    assert [step.question for step in read] == [
        f"{QUESTION} (Leave)", f"{QUESTION} (Sites)", f"{QUESTION} (Canteen)"
    ]  # fmt: skip
    assert [[p.passage_id for p in step.passages if p.kept] for step in read] == [
        ["leave#1", "leave#2"], ["sites"], ["menu"]
    ]  # fmt: skip
    assert [step.answer for step in read] == [FROM_LEAVE, FROM_SITES, None]
    assert [step.flags for step in read] == [[], [], ["declined"]]
    assert [(c.passage_id, c.step) for c in body.citations] == [
        ("leave#1", "3.1"), ("leave#2", "3.1"), ("sites", "3.2")
    ]  # fmt: skip
    assert (body.usage.retrievals, body.usage.steps, body.usage.llm_calls) == (1, 1, 4)
    assert body.usage.passages == 4


async def test_a_summary_that_passages_do_not_contain_is_flagged_and_given() -> None:
    strict = Settings.model_validate({"answers": {"unsupported": "abstain"}})
    free = "Generous rules apply everywhere and managers at Acme decide about exceptions."
    body = await body_of(script(free), HITS, QUESTION, settings=strict)
    assert (body.answer, body.answered, body.supported) == (free, True, False)
    assert body.steps[-1].flags == ["unsupported"]
    assert [each.passage_id for each in body.citations] == ["leave#1", "leave#2", "sites"]


async def test_what_one_document_gives_is_the_answer_without_a_merge() -> None:
    hits = {"": [LEAVE[0], NOISE]}
    spoken = [reading("Leave", "There are 25 days of annual leave."), *script()[2:3]]
    body = await body_of(spoken, hits, QUESTION)
    assert body.answer == "There are 25 days of annual leave."
    assert body.supported
    assert [each.passage_id for each in body.citations] == ["leave#1"]


@pytest.mark.parametrize(
    ("hits", "found"), [({"": [NOISE]}, "declined"), ({}, "no_evidence")], ids=["other", "none"]
)
async def test_without_a_document_on_it_there_is_no_answer(hits: Hits, found: str) -> None:
    body = await body_of([reading("Canteen", "no answer found", None)], hits, QUESTION)
    assert (body.answered, body.route) == (False, "compound")
    assert body.answer == Settings().answers.no_answer_text
    assert flags(body) == {found}


async def test_the_ten_best_documents_are_read() -> None:
    hits = {"": [passage(f"d{n}", "There are 25 days of leave.") for n in range(12)]}
    spoken = [reading("d", "25 days of leave", MAX_DOCUMENTS), say(MERGES, "25 days")]
    body = await body_of(spoken, hits, QUESTION)
    assert [step.passages[0].passage_id for step in body.steps[2:-1]] == [
        f"d{n}" for n in range(MAX_DOCUMENTS)
    ]
    assert body.steps[1].flags == ["shortened"]


async def test_a_document_longer_than_the_model_reads_is_shortened() -> None:
    able = Capabilities(passages=1)
    spoken = [reading("Leave", "25 days of annual leave")]
    body = await body_of(spoken, {"": LEAVE}, QUESTION, capabilities=able)
    assert [each.passage_id for each in body.steps[2].passages] == ["leave#1"]
    assert body.steps[2].flags == ["shortened"]


async def test_with_too_few_calls_what_was_read_is_merged() -> None:
    spoken = [*script()[:2], say(MERGES, TOLD)]
    body = await body_of(spoken, HITS, QUESTION, limits={"max_llm_calls": 3})
    assert (body.answer, body.stopped_by, body.usage.llm_calls) == (TOLD, "budget", 3)
    assert [step.answer for step in body.steps[2:5]] == [FROM_LEAVE, FROM_SITES, None]


async def test_at_the_deadline_what_was_read_is_merged() -> None:
    spoken = [
        reading("Leave", FROM_LEAVE),
        reading("Sites", FROM_SITES),
        reading("Canteen", "never", delay=5),
        say(MERGES, TOLD),
    ]
    body = await body_of(spoken, HITS, QUESTION, limits={"timeout_s": 1.2})
    assert (body.answer, body.stopped_by) == (TOLD, "deadline")


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({"route": "single"}, "request"),
        ({"loop": "anrag"}, "model"),
        ({"settings": {"routes": {"allowed": ["single", "complex"]}}}, "model"),
    ],
)
async def test_another_handling_that_is_named_is_respected(
    options: dict[str, Any], by: str
) -> None:
    if "settings" in options:
        options = {"settings": Settings.model_validate(options["settings"])}
    spoken = [say("Task: answer", "25 days of annual leave"), *relevant("Leave", "Sites")]
    spoken += [say("Task: route", "single-step question")] * (by == "model")
    events = await events_of(spoken, HITS, QUESTION, **options)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("single", by)
