"""Questions through the entry of HTTP; failures are rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    Done,
    QueryIssued,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
)
from service.answer.request import PreparedRequest
from service.core.errors import EngineFailure
from service.evaluation.datasets import GoldQuestion
from service.evaluation.report import by_route, means_of
from service.evaluation.rows import Row
from service.evaluation.runner import Ask, Task, work_off
from service.strategies.pipeline import answer_stream
from tests.support.asking import ScriptedRetriever, inquiry, passage, prepared
from tests.support.scripted import ScriptedGenerator, ScriptStep

ROME = passage("rome", "Rome is the capital of Italy.")


def asking(script: dict[str, Any]) -> Ask:
    """The real stream over a scripted reader: `closed_book` and `single` questions."""

    async def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        steps = [
            ScriptStep("true", "Task: relevance", times=None),
            ScriptStep(script[request.question]),
        ]
        asked = inquiry(
            ScriptedGenerator(steps), ScriptedRetriever({"": [ROME]}), request.question,
            route=request.route, loop=request.loop,
        )  # fmt: skip
        async for event in answer_stream(asked):
            yield event

    return ask


def gold(number: int, answer: str, **more: Any) -> GoldQuestion:
    return GoldQuestion(f"q{number}", f"Question {number}?", (answer,), **more)


async def rows_of(
    questions: list[GoldQuestion], ask: Ask, request: PreparedRequest | None = None, **more: Any
) -> list[Row]:
    request = request or prepared(route="single")
    tasks = [Task(question, request, **more) for question in questions]
    return [row async for row in work_off(tasks, ask, 3)]


async def test_a_row_says_what_was_asked_answered_and_spent() -> None:
    (row,) = await rows_of([gold(1, "Rome", route="single")], asking({"Question 1?": "Rome"}))
    assert (row.prediction, row.answered, row.error) == ("Rome", True, None)
    assert (row.route, row.loop, row.stopped_by) == ("single", "anrag", "answer")
    assert (row.steps, row.retrievals, row.llm_calls) == (1, 1, 2)
    assert row.prompt_tokens > 0
    assert row.completion_tokens > 0
    assert row.ms is not None
    assert row.scores == {
        "em": 1, "f1": 1, "precision": 1, "recall": 1, "accuracy": 1, "lenient_em": 1,
        "compound_accuracy": None, "citation_hit": 1, "supporting_hit": None,
        "supporting_recall": None, "supporting_precision": None, "pool_recall": None,
        "route_accuracy": None,
    }  # fmt: skip


async def _cut_short(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
    yield Start(id="a", question=request.question)
    yield RouteChosen(route="complex", loop="autorag", by="model")
    yield StepStart(step="1", kind="retrieve")
    yield QueryIssued(step="1", query="q", retriever="bm25")
    yield StepEnd(step="1")
    yield Done()


async def _raises(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
    yield Start(id="a", question=request.question)
    raise ZeroDivisionError("a bug")


async def _refuses(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
    raise EngineFailure("never started")
    yield Done()


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (_cut_short, "The stream ended without an answer or an error."),
        (_raises, "ZeroDivisionError: a bug"),
        (_refuses, "urn:revelator:problem:engine-unavailable: never started"),
    ],
)
async def test_whatever_goes_wrong_is_a_row(ask: Ask, error: str) -> None:
    (row,) = await rows_of([gold(1, "x")], ask)
    assert row.error == error
    assert not row.answered
    assert row.retrievals == (1 if ask is _cut_short else 0)


async def test_the_route_is_scored_where_the_service_chose_it() -> None:
    questions = [gold(1, "x", route="complex"), gold(2, "x", route="single"), gold(3, "x")]
    free = await rows_of(questions, _cut_short, prepared())
    assert [row.scores["route_accuracy"] for row in free] == [1, 0, None]
    named = await rows_of(questions, _cut_short)
    assert [row.scores["route_accuracy"] for row in named] == [None, None, None]


async def test_means_are_over_all_and_per_gold_route() -> None:
    script = {"Question 1?": "Rome", "Question 2?": "Rome and Oslo", "Question 3?": "Rome"}
    questions = [
        gold(1, "Rome", route="single"),
        gold(2, "Rome && 1984", route="compound", parts=(("Rome",), ("1984",))),
        gold(3, "A && B && C", route="compound", parts=(("A",), ("Bb",), ("Cc",))),
    ]
    groups = by_route(await rows_of(questions, asking(script)))
    means = {name: means_of(own) for name, own in groups.items()}
    numbers = [(name, own["questions"]) for name, own in means.items()]
    assert numbers == [("all", 3), ("single", 1), ("compound", 2)]
    assert means["all"]["route_accuracy"] is None
    assert means["single"]["compound_accuracy"] is None
    assert means["compound"]["compound_accuracy"] == 0.25
    assert means["compound"]["compound_accuracy_micro"] == 0.2
