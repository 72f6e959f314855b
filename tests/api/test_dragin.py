"""DRAGIN over HTTP: the shipped model's own signals, and engines that have none."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import AnswerReady, Token, Trigger, Withdraw
from service.answer.fold import Fold
from service.core.domain import Answer, Timing
from tests.conformance.dragin_parity import WordRetriever, load_passages
from tests.support.live import answering, config, live, typed
from tests.support.tiny import open_tiny

pytestmark = pytest.mark.anyio
ASKED = {"loop": "dragin", "route": "single", "timeout_s": 300}


@pytest.mark.parametrize("profile", ["service", "official"])
@pytest.mark.timeout(400)
async def test_a_question_is_drafted_doubted_and_answered(profile: str) -> None:
    settings = config(dragin={"profile": profile, "threshold": 0.05, "max_tokens": 40})
    engine = open_tiny(timeout_s=120)
    retriever = WordRetriever(load_passages())
    try:
        async with live(engine, settings=settings, retriever=retriever) as service:
            events = typed(await service.stream("Who directed Laserblast?", max_steps=2, **ASKED))
    finally:
        await engine.aclose()

    triggers = [event for event in events if isinstance(event, Trigger)]
    assert 1 <= len(triggers) <= 2
    assert all(trigger.score > trigger.threshold == 0.05 for trigger in triggers)
    assert len([e for e in events if isinstance(e, Withdraw) and e.reason == "trigger"]) >= 1
    assert any(isinstance(event, Token) and event.role == "draft" for event in events)
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    fold = Fold()
    for event in events:
        fold.add(event)
    assert ready.body == fold.answer(Timing(**ready.body.timing_ms.model_dump()))
    kinds = [(step.kind, step.trigger is not None) for step in ready.body.steps]
    assert kinds[:2] == [("answer", False), ("retrieve", True)]
    assert ready.body.loop == "dragin"
    assert ready.body.usage.retrievals <= len(triggers)
    assert ready.body.citations or not ready.body.answered


@pytest.mark.parametrize("path", ["ask", "stream"])
async def test_an_engine_without_signals_is_refused_before_the_first_byte(path: str) -> None:
    async with live(answering()) as service:
        body: dict[str, Any] = {"question": "Who?", **ASKED}
        url = "/answer" if path == "ask" else "/answer/stream"
        async with service.http.post(url, json=body) as response:
            problem = await response.json(content_type=None)
            assert response.status == 422
    assert problem["type"] == "urn:revelator:problem:loop-unavailable"
    assert "does not provide token signals" in problem["detail"]
    assert "revelator worker" in problem["detail"]


async def test_other_loops_need_none() -> None:
    async with live(answering()) as service:
        status, body = await service.ask("Who?", loop="anrag", route="single")
    assert status == 200
    assert Answer.model_validate(body).loop == "anrag"
