"""The baselines on the shipped model, stores and sample corpus, over HTTP and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.answer.events import AnswerReady
from service.answer.fold import Fold
from service.api.app import create_app
from service.core.domain import Answer, Timing
from service.core.settings import Settings
from service.engines.base import Capabilities
from tests.conftest import need
from tests.support.live import Live, answering, config, live, serving, typed
from tests.support.scripted import ScriptedGenerator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]
QUESTION = "Who directed Laserblast?"
FEW = {"max_steps": 2, "top_k": 1}  # little to read and to write: the machine may be slow
DRAFTS: dict[str, Any] = {"dragin": {"max_tokens": 32}}
SECTIONS: dict[str, dict[str, Any]] = {
    "no_retrieval": {},
    "one_retrieval": {},
    "entropy_gate": {},
    "fixed_length": DRAFTS | {"baselines": {"window": 8}},
    "fixed_sentence": DRAFTS,
    "flare": DRAFTS | {"baselines": {"flare_theta": 0.99}},
}


@pytest.fixture(params=sorted(SECTIONS))
async def served(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[tuple[str, Live]]:
    need("onnxruntime")
    patient = {"default": {"timeout_s": 120}}  # for busy machines
    settings: Settings = config(data_dir=tmp_path, engines=patient, **SECTIONS[request.param])
    app = create_app(settings)
    async with serving(app, settings) as (server, url), aiohttp.ClientSession(url) as http:
        yield request.param, Live(url, app, server, http)


async def test_a_question_is_answered_alike_over_http_and_streamed(
    served: tuple[str, Live],
) -> None:
    loop, service = served
    asked: dict[str, Any] = {"loop": loop, "route": "single", "timeout_s": 300, **FEW}
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
    """The shipped model was not taught facts, and says that it does not know."""
    assert not answer.answered
    assert (answer.usage.retrievals, answer.usage.llm_calls) == (0, 1)
    assert [step.flags for step in answer.steps] == [["closed_book", "declined"]]


def claims_one_retrieval(answer: Answer) -> None:
    assert answer.answered
    assert (answer.usage.retrievals, answer.usage.llm_calls) == (1, 1)
    assert answer.citations[0].title == "Laserblast"


def claims_entropy_gate(answer: Answer) -> None:
    """What it does not know is searched for."""
    assert answer.answered
    assert (answer.usage.retrievals, answer.usage.llm_calls) == (1, 2)
    assert [step.kind for step in answer.steps] == ["answer", "retrieve"]
    assert answer.citations[0].title == "Laserblast"


def claims_drafted(answer: Answer) -> None:
    """Each retrieval has a window that was written from it; the rest and the answer come last."""
    assert answer.answered
    assert answer.steps[0].query == QUESTION
    assert answer.steps[-1].kind == "answer"
    written = [step for step in answer.steps if step.kind == "retrieve"]
    assert all(step.answer and step.passages for step in written)
    assert 1 <= answer.usage.retrievals == len(written) <= 2
    assert [step.query for step in written[1:]] == [step.answer for step in written[:-1]]
    rest = [step for step in answer.steps if step.kind == "answer" and step.thought]
    assert answer.usage.generations == len(written) + len(rest)
    assert answer.citations or "unsupported" in answer.steps[-1].flags


def claims_flare(answer: Answer) -> None:
    """With θ near 1 the shipped model doubts what it drafts, and writes it anew."""
    assert answer.answered
    first, *others = answer.steps
    assert (first.kind, first.query, first.trigger) == ("retrieve", QUESTION, None)
    again = [step for step in others if step.kind == "retrieve"]
    assert again
    for step in again:
        assert step.trigger is not None
        assert step.trigger.score <= step.trigger.threshold == 0.99
        assert step.trigger.query == step.query
    assert answer.usage.hallucinated == len(again) == answer.usage.retrievals - 1 == 1
    assert answer.citations or "unsupported" in answer.steps[-1].flags


CLAIMS = {
    "fixed_length": claims_drafted,
    "fixed_sentence": claims_drafted,
    "flare": claims_flare,
    "no_retrieval": claims_no_retrieval,
    "one_retrieval": claims_one_retrieval,
    "entropy_gate": claims_entropy_gate,
}


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
@pytest.mark.parametrize("loop", ["entropy_gate", "flare"])
async def test_a_loop_without_probabilities_is_refused_before_the_first_byte(
    path: str, loop: str
) -> None:
    engine = ScriptedGenerator(answering(), capabilities=Capabilities())
    async with live(engine) as service:
        body = {"question": "Who?", "loop": loop, "route": "single"}
        async with service.http.post(path, json=body) as response:
            problem = await response.json(content_type=None)
            assert response.status == 422
    assert problem["type"] == "urn:revelator:problem:loop-unavailable"
    assert "probabilities of its tokens" in problem["detail"]
