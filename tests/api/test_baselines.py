"""The baselines on the shipped model, stores and sample corpus, over HTTP and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.answer.events import AnswerReady
from service.answer.fold import Fold
from service.core.domain import Answer, Timing
from service.core.settings import Settings
from service.engines.base import Capabilities
from tests.support.live import Live, answering, config, live, typed
from tests.support.scripted import ScriptedGenerator
from tests.support.tiny import open_tiny

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]
QUESTION = "Who directed Laserblast?"
SECTIONS: dict[str, dict[str, Any]] = {"no_retrieval": {}, "one_retrieval": {}, "entropy_gate": {}}


@pytest.fixture(params=sorted(SECTIONS))
async def served(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[tuple[str, Live]]:
    engine = open_tiny(timeout_s=120)
    settings: Settings = config(data_dir=tmp_path, **SECTIONS[request.param])
    async with live(engine, settings=settings, own_stores=True) as service:
        yield request.param, service
    await engine.aclose()


async def test_a_question_is_answered_alike_over_http_and_streamed(
    served: tuple[str, Live],
) -> None:
    loop, service = served
    asked: dict[str, Any] = {"loop": loop, "route": "single", "timeout_s": 300}
    status, body = await service.ask(QUESTION, **asked)
    assert status == 200, body
    answer = Answer.model_validate(body)
    events = typed(await service.stream(QUESTION, **asked))
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    fold = Fold()
    for event in events:
        fold.add(event)
    assert ready.body == fold.answer(Timing(**ready.body.timing_ms.model_dump()))
    assert (ready.body.answer, ready.body.usage) == (answer.answer, answer.usage)
    assert answer.loop == loop
    CLAIMS[loop](answer)


def claims_no_retrieval(answer: Answer) -> None:
    assert answer.answered
    assert (answer.usage.retrievals, answer.usage.llm_calls) == (0, 1)
    assert [step.flags for step in answer.steps] == [["closed_book"]]


def claims_one_retrieval(answer: Answer) -> None:
    assert answer.answered
    assert (answer.usage.retrievals, answer.usage.llm_calls) == (1, 1)
    assert answer.citations[0].title == "Laserblast"


def claims_entropy_gate(answer: Answer) -> None:
    """The shipped model knows no facts, and is unsure of what it says without passages."""
    assert answer.answered
    assert (answer.usage.retrievals, answer.usage.llm_calls) == (1, 2)
    assert [step.kind for step in answer.steps] == ["answer", "retrieve"]
    assert answer.citations[0].title == "Laserblast"


CLAIMS = {
    "no_retrieval": claims_no_retrieval,
    "one_retrieval": claims_one_retrieval,
    "entropy_gate": claims_entropy_gate,
}


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_a_gate_without_probabilities_is_refused_before_the_first_byte(path: str) -> None:
    engine = ScriptedGenerator(answering(), capabilities=Capabilities())
    async with live(engine) as service:
        body = {"question": "Who?", "loop": "entropy_gate", "route": "single"}
        async with service.http.post(path, json=body) as response:
            problem = await response.json(content_type=None)
            assert response.status == 422
    assert problem["type"] == "urn:revelator:problem:loop-unavailable"
    assert "probabilities of its tokens" in problem["detail"]
