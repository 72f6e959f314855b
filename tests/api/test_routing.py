"""The shipped classifier and escalation, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.answer.events import AnswerReady
from service.answer.fold import Fold
from service.core.errors import ConfigurationError
from service.runtime import open_runtime
from tests.api.test_answer import check_grammar
from tests.conftest import need
from tests.stubs.fake_retriever import FakeRetriever
from tests.support.live import answering, config, live, typed
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio

CLASSIFIED = {"kind": "classifier"}
ESCALATING = {"when": "auto"}
DEEPER = [
    ScriptStep(match="Task: route", reply="single-step question"),
    ScriptStep(match=["Task: relevance", "Who composed it?"], reply="true", times=None),
    ScriptStep(match="Task: relevance", reply="false", times=None),
    ScriptStep(match="Task: refine", reply="Who composed it?"),
    ScriptStep(match="Task: answer", reply="Vincenzo Bellini"),
    ScriptStep(match="Task: ending", reply="yes"),
    ScriptStep(match="Task: final", reply="Vincenzo Bellini"),
]


def routes(wire: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(data["route"], data["by"]) for name, data in wire if name == "route"]


async def test_the_shipped_classifier_routes_without_a_call() -> None:
    need("onnxruntime")
    script = [step for step in answering() if step.match != "Task: route"]
    async with live(script, settings=config(router=CLASSIFIED)) as service:
        wire = await service.stream("Who composed Norma?")
    check_grammar(wire)
    assert routes(wire) == [("single", "classifier")]
    chosen = next(data for name, data in wire if name == "route")
    assert 0.7 <= chosen["confidence"] <= 1
    body = next(data["body"] for name, data in wire if name == "answer")
    assert body["steps"][0]["kind"] == "route"
    assert body["steps"][0]["llm_calls"] == 0


async def test_what_the_classifier_is_not_sure_of_the_model_routes() -> None:
    need("onnxruntime")
    settings = config(router=CLASSIFIED | {"confidence": 1.0})
    async with live(settings=settings) as service:
        wire = await service.stream("Who composed Norma?")
    assert routes(wire) == [("single", "model")]


async def test_an_escalated_answer_is_the_fold_of_its_events() -> None:
    async with live(DEEPER, settings=config(escalation=ESCALATING)) as service:
        wire = await service.stream("Whose opera is it?")
        line = 'revelator_questions_total{loop="anrag",outcome="answered",route="complex"}'
        assert await service.metric(line) == 1
    check_grammar(wire)
    assert routes(wire) == [("single", "model"), ("complex", "escalation")]
    events, fold = typed(wire), Fold()
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    for event in events[: events.index(ready)]:
        fold.add(event)
    assert fold.answer(ready.body.timing_ms) == ready.body
    assert [step.flags for step in ready.body.steps if step.flags] == [
        ["no_evidence"], ["escalated"],
    ]  # fmt: skip


async def test_answer_and_stream_escalate_alike() -> None:
    settings = config(escalation=ESCALATING)
    async with live(DEEPER, settings=settings) as service:
        status, body = await service.ask("Whose opera is it?")
    assert status == 200
    assert (body["answer"], body["route"]) == ("Vincenzo Bellini", "complex")
    assert json.loads(json.dumps(body["steps"][2]["flags"])) == ["escalated"]


async def test_a_service_without_its_checkpoint_does_not_start(tmp_path: Any) -> None:
    settings = config(router=CLASSIFIED | {"location": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="revelator train router"):
        async with open_runtime(
            settings, engines={"default": ScriptedGenerator()}, retriever=FakeRetriever()
        ):
            pass
