"""Judgements that cannot be read: room for a preface, and no verdict is not "irrelevant"."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import AnswerReady, BaseEvent, Judgement
from service.core.domain import Step
from service.engines.base import Capabilities
from service.strategies.pipeline import answer_stream
from service.telemetry.metrics import Metrics
from tests.support.asking import ScriptedRetriever, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio

QUESTION = "Who composed Norma?"
HITS = {
    "": [
        passage("palermo", "Palermo is a city in Sicily.", "Palermo"),
        passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma"),
    ]
}
ANSWER = ScriptStep(match="Task: answer", reply="Vincenzo Bellini")
SHRUG = "I would have to see more of it"


async def asked(
    script: list[ScriptStep], *, capabilities: Capabilities | None = None, **options: Any
) -> tuple[list[BaseEvent], ScriptedGenerator, Metrics]:
    engine, metrics = ScriptedGenerator(script, capabilities=capabilities), Metrics()
    question = inquiry(engine, ScriptedRetriever(HITS), QUESTION, **options)
    question.observer = metrics
    events = [event async for event in answer_stream(question)]
    engine.assert_finished()
    return events, engine, metrics


def steps(events: list[BaseEvent]) -> list[Step]:
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    return ready.body.steps


async def test_no_verdict_that_can_be_read_keeps_the_best_ranked() -> None:
    unread = ScriptStep(match="Task: relevance", reply=SHRUG, times=2)

    events, _, metrics = await asked([unread, ANSWER], route="single")

    (step,) = steps(events)
    assert step.answer == "Vincenzo Bellini"
    assert "unread_judgement" in step.flags
    assert "no_evidence" not in step.flags
    assert [p.kept for p in step.passages] == [True, True]
    said = [event for event in events if isinstance(event, Judgement)]
    assert [(each.relevant, each.kept, each.reason) for each in said] == [
        (None, True, "judgement could not be parsed")
    ] * 2
    assert b"revelator_unread_judgements_total 2.0" in metrics.render()


async def test_an_ending_that_cannot_be_read_is_flagged_and_is_not_done() -> None:
    script = [
        ScriptStep(match="Task: ending", reply=SHRUG, times=None),
        ScriptStep(match="Task: refine", reply=QUESTION),
        ScriptStep(match="Task: relevance", reply="true", times=2),
        ANSWER,
        ScriptStep(match="Task: final", reply="Vincenzo Bellini"),
    ]

    events, _, metrics = await asked(script, route="complex", max_steps=1)

    first = steps(events)[0]
    assert (first.kind, first.flags) == ("ending", ["unread_judgement"])
    assert [e.ending for e in events if isinstance(e, Judgement) and e.ending is not None] == [
        False, False,
    ]  # fmt: skip
    assert b"revelator_unread_judgements_total 2.0" in metrics.render()


@pytest.mark.parametrize(("held", "tokens"), [(True, 8), (False, 64)])
async def test_labels_have_room_for_a_preface_where_decoding_is_free(
    held: bool, tokens: int
) -> None:
    script = [
        ScriptStep(match="Task: route", reply="This is a single-step question."),
        ScriptStep(match="Task: relevance", reply="The passage helps, so: true", times=2),
        ANSWER,
    ]

    _, engine, _ = await asked(script, capabilities=Capabilities(choices=held))

    labels = [request.max_tokens for request in engine.requests if request.choices]
    assert labels == [tokens] * 3
