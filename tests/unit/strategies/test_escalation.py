"""`single` that fails its own check and goes on as `complex`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from service.answer.events import BaseEvent, RouteChosen, Token, Withdraw
from service.core.settings import Settings
from tests.support.asking import body_in, events_of
from tests.support.opera import BELLINI, NOISE, NORMA, QUESTION, say

HITS = {"composed": [NORMA, NOISE], "Bellini": [BELLINI, NOISE], "": [NOISE, NORMA]}
UNSURE = math.log(0.4)


def settings(escalate: str = "auto", **routes: Any) -> Settings:
    return Settings.model_validate({"routes": {"escalate": escalate} | routes})


ROUTED = say("Task: route", "single-step question")
DEEPER = [
    say("Task: refine", "Who composed Norma?"),
    say(["Task: relevance", "Who composed", "Doc: Norma:"], "true"),
    say(["Task: answer", "Who composed"], "Vincenzo Bellini"),
    say("Task: ending", "no"),
    say("Task: refine", "Where was Vincenzo Bellini born?"),
    say(["Task: relevance", "Where was", "Doc: Bellini:"], "true"),
    say(["Task: answer", "Where was"], "Catania"),
    say("Task: ending", "yes"),
    say("Task: final", "Catania"),
    say("Task: relevance", "false", None),
]
DOUBTED = [
    say(["Task: relevance", QUESTION, "Doc: Norma:"], "true"),
    say(["Task: answer", QUESTION], "in Norma", logprob=UNSURE),
]


def routes_of(events: list[BaseEvent]) -> list[tuple[str, str]]:
    return [(event.route, event.by) for event in events if isinstance(event, RouteChosen)]


async def test_nothing_relevant_escalates_and_the_longer_way_answers() -> None:
    events = await events_of([ROUTED, *DEEPER], HITS, QUESTION, settings=settings())
    body = body_in(events)
    assert (body.answer, body.answered, body.route, body.loop) == (
        "Catania", True, "complex", "anrag",
    )  # fmt: skip
    assert routes_of(events) == [("single", "model"), ("complex", "escalation")]
    assert [(step.id, step.kind, step.flags) for step in body.steps] == [
        ("1", "route", []),
        ("2", "retrieve", ["no_evidence"]),
        ("3", "route", ["escalated"]),
        ("4", "retrieve", []),
        ("5", "retrieve", []),
        ("6", "answer", []),
    ]
    assert [citation.step for citation in body.citations] == ["4", "5"]
    assert (body.usage.steps, body.usage.retrievals) == (3, 3)


async def test_an_answer_the_reader_doubts_is_withdrawn() -> None:
    asked = settings(escalate_below=0.5)
    events = await events_of([ROUTED, *DOUBTED, *DEEPER], HITS, QUESTION, settings=asked)
    body = body_in(events)
    assert body.answer == "Catania"
    assert body.steps[1].answer == "in Norma"
    (withdrawn,) = [event for event in events if isinstance(event, Withdraw)]
    assert (withdrawn.step, withdrawn.role, withdrawn.reason) == ("2", "answer", "restart")
    assert [citation.step for citation in body.citations] == ["4", "5"]


async def test_a_surer_answer_stands() -> None:
    script = [ROUTED, *DOUBTED, say("Task: relevance", "false", None)]
    events = await events_of(script, HITS, QUESTION, settings=settings(escalate_below=0.3))
    assert (body_in(events).answer, routes_of(events)) == ("in Norma", [("single", "model")])


async def test_where_the_longer_way_finds_nothing_the_first_answer_comes_back() -> None:
    script = [
        ROUTED,
        *DOUBTED,
        say("Task: relevance", "false", None),
        say("Task: refine", "Who composed it?", None),
    ]
    events = await events_of(script, HITS, QUESTION, settings=settings(escalate_below=0.5))
    body = body_in(events)
    assert (body.answer, body.answered, body.route) == ("in Norma", True, "complex")
    assert [(citation.step, citation.passage_id) for citation in body.citations] == [("2", "norma")]
    shown = [event.step for event in events if isinstance(event, Token) and event.role == "answer"]
    assert shown == ["2"] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"settings": Settings()},
        {"settings": settings("never")},
        {"settings": settings(allowed=["direct", "single"])},
        {"settings": settings("auto"), "conditions": {"skip": ["refine"]}},
        {"settings": settings(), "max_steps": 1},
        {"settings": settings(), "limits": {"max_retrievals": 1}},
    ],
    ids=["default", "never", "not allowed", "no refining", "one step", "no budget"],
)  # fmt: skip
async def test_it_ends_unanswered_where_it_may_not_go_on(options: dict[str, Any]) -> None:
    script = [ROUTED, say("Task: relevance", "false", None)]
    events = await events_of(script, HITS, QUESTION, **options)
    assert not body_in(events).answered
    assert routes_of(events) == [("single", "model")]


async def test_a_route_that_the_caller_named_stands_unless_the_settings_say_otherwise() -> None:
    script = [say("Task: relevance", "false", None)]
    events = await events_of(script, HITS, QUESTION, settings=settings(), route="single")
    assert routes_of(events) == [("single", "request")]
    always = settings("always")
    events = await events_of(DEEPER, HITS, QUESTION, settings=always, route="single")
    assert routes_of(events) == [("single", "request"), ("complex", "escalation")]


async def test_both_ways_together_take_no_more_steps_than_asked_for() -> None:
    script = [
        ROUTED,
        say("Task: refine", "Who composed Norma?"),
        say(["Task: relevance", "Who composed", "Doc: Norma:"], "true"),
        say("Task: relevance", "false", None),
        say("Task: answer", "Vincenzo Bellini"),
        say("Task: ending", "no"),
        say("Task: final", "Vincenzo Bellini"),
    ]
    events = await events_of(script, HITS, QUESTION, settings=settings(), max_steps=2)
    body = body_in(events)
    assert (body.usage.steps, body.stopped_by, body.answer) == (2, "max_steps", "Vincenzo Bellini")


async def test_the_question_that_failed_is_not_searched_again() -> None:
    script = [
        ROUTED,
        say(["Task: refine", '""nothing""'], QUESTION),
        say(["Task: refine", f"**seed query-1**: {QUESTION}"], "Who composed Norma?"),
        *DEEPER[1:],
    ]
    events = await events_of(script, HITS, QUESTION, settings=settings())
    queries = [step.query for step in body_in(events).steps if step.query]
    assert queries == [QUESTION, "Who composed Norma?", "Where was Vincenzo Bellini born?"]


async def test_a_refiner_that_knows_no_other_question_ends_the_search() -> None:
    script = [ROUTED, say("Task: relevance", "false", None), say("Task: refine", QUESTION, 2)]
    body = body_in(await events_of(script, HITS, QUESTION, settings=settings()))
    assert [step.query for step in body.steps if step.query] == [QUESTION]
    assert not body.answered
    assert body.steps[-1].flags == ["refine_loop"]
