"""EfficientRAG over HTTP: checkpoints that go by single words, and deployments without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from service.answer.events import AnswerReady, Judgement, QueryIssued, StepStart, ThoughtWritten
from service.answer.fold import Fold
from service.core.domain import Answer, Timing
from service.core.settings import Settings
from service.encoders.base import Tag
from tests.stubs.word_labelling import write_checkpoint
from tests.support.live import config, live, typed
from tests.support.scripted import ScriptStep

pytestmark = pytest.mark.anyio
ASKED: dict[str, Any] = {"loop": "efficientrag", "route": "single"}
QUESTION = "What is the city of the composer of Norma?"
READS = ScriptStep(match='Doc1: "Norma', reply="Catania", times=None)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Settings:
    tagged = {"opera": Tag.CONTINUE, "born": Tag.FINISH}
    write_checkpoint(tmp_path / "labeler", "labeler", {"vincenzo", "opera"}, tagged)
    write_checkpoint(tmp_path / "filter" / "served", "filter", {"city", "vincenzo"})
    return config(efficientrag={"location": tmp_path})


async def test_a_question_is_labelled_filtered_and_read_once(checkpoints: Settings) -> None:
    async with live([READS], settings=checkpoints) as service:
        events = typed(await service.stream(QUESTION, **ASKED))
    kinds = [event.kind for event in events if isinstance(event, StepStart)]
    assert kinds == ["retrieve", "retrieve", "answer"]
    queries = [event.query for event in events if isinstance(event, QueryIssued)]
    assert queries == [QUESTION, "city Vincenzo"]
    assert [e.text for e in events if isinstance(e, ThoughtWritten)] == ["opera Vincenzo"]
    assert len([event for event in events if isinstance(event, Judgement)]) == 6
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    fold = Fold()
    for event in events:
        fold.add(event)
    assert ready.body == fold.answer(Timing(**ready.body.timing_ms.model_dump()))
    assert (ready.body.answer, ready.body.loop) == ("Catania", "efficientrag")
    assert (ready.body.usage.llm_calls, ready.body.usage.retrievals) == (1, 2)
    assert {citation.passage_id for citation in ready.body.citations} == {"bellini"}


async def test_questions_at_once_share_the_models(checkpoints: Settings) -> None:
    async with live([READS], settings=checkpoints) as service:
        answers: list[tuple[int, dict[str, Any]]] = []

        async def ask() -> None:
            answers.append(await service.ask(QUESTION, **ASKED))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(ask)
    assert [(status, body["answer"]) for status, body in answers] == [(200, "Catania")] * 8


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_without_a_checkpoint_it_is_refused_before_the_first_byte(
    tmp_path: Path, path: str
) -> None:
    settings = config(efficientrag={"location": tmp_path / "none"})
    async with live(settings=settings) as service:
        body = {"question": QUESTION, **ASKED}
        async with service.http.post(path, json=body) as response:
            problem = await response.json(content_type=None)
            assert response.status == 422
        async with service.http.get("/readyz") as response:
            ready = await response.json()
            assert response.status == 200
        status, other = await service.ask(QUESTION, loop="anrag", route="single")
    assert problem["type"] == "urn:revelator:problem:loop-unavailable"
    assert str(tmp_path / "none") in problem["detail"]
    assert "revelator train labeler" in problem["detail"]
    assert "loop efficientrag" in ready["degraded"][0]
    assert (status, Answer.model_validate(other).loop) == (200, "anrag")


async def test_a_broken_model_is_named_and_remembered(
    checkpoints: Settings, tmp_path: Path
) -> None:
    model = tmp_path / "labeler" / "model.onnx"
    model.write_bytes(b"no model")
    async with live(settings=checkpoints) as service:
        events = await service.stream(QUESTION, **ASKED)
        status, body = await service.ask(QUESTION, **ASKED)
    assert [name for name, _ in events][-2:] == ["error", "done"]
    for problem in (events[-2][1]["problem"], body):
        assert problem["type"] == "urn:revelator:problem:loop-unavailable"
        assert str(model) in problem["detail"]
    assert status == 422
