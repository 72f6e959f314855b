"""IRCoT, ITER-RETGEN and Self-Ask as they come with the wheel, over HTTP and streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.answer.events import AnswerReady
from service.answer.fold import Fold
from service.api.app import create_app
from service.core.domain import Answer, Timing
from tests.conftest import need
from tests.support.live import Live, config, live, serving, typed
from tests.support.tiny import open_tiny

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]
QUESTION = "Where was the director of Goodbye, Franziska born?"


async def answers(loop: str, data_dir: Path) -> Answer:
    """The body, which is the same over both ways but for its times."""
    asked: dict[str, Any] = {"loop": loop, "route": "single", "timeout_s": 300}
    engine = open_tiny(timeout_s=120)
    settings = config(data_dir=data_dir, answers={"unsupported": "flag"})  # it guesses
    try:
        async with live(engine, settings=settings, own_stores=True) as service:
            status, body = await service.ask(QUESTION, **asked)
            events = typed(await service.stream(QUESTION, **asked))
    finally:
        await engine.aclose()
    assert status == 200, body
    answer = Answer.model_validate(body)
    (ready,) = [event.body for event in events if isinstance(event, AnswerReady)]
    fold = Fold()
    for event in events:
        fold.add(event)
    assert ready == fold.answer(Timing(**ready.timing_ms.model_dump()))
    assert (ready.answer, ready.usage, ready.citations) == (
        answer.answer, answer.usage, answer.citations,
    )  # fmt: skip
    assert (answer.loop, answer.answered) == (loop, True)
    return answer


async def test_ircot_crosses_a_bridge(tmp_path: Path) -> None:
    body = await answers("ircot", tmp_path)
    assert body.steps[0].query == QUESTION
    assert body.steps[1].query == body.steps[0].answer
    assert body.steps[-1].kind == "answer"
    assert body.usage.llm_calls == body.usage.retrievals + 1


async def test_iter_retgen_searches_with_what_it_wrote(tmp_path: Path) -> None:
    body = await answers("iter_retgen", tmp_path)
    for before, step in zip(body.steps, body.steps[1:], strict=False):
        assert step.query is None or step.query == f"{QUESTION} {before.thought}"


async def test_self_ask_asks_and_concludes(tmp_path: Path) -> None:
    body = await answers("self_ask", tmp_path)
    asked = [step for step in body.steps if step.kind == "retrieve"]
    assert asked
    assert all(step.query == step.question for step in asked)
    assert body.steps[-1].kind == "answer"


async def test_each_runs_on_the_shipped_model(tmp_path: Path) -> None:
    """What it makes of them is for the benchmarks to say: it was trained on none of the three."""
    need("onnxruntime")
    patient = {"default": {"timeout_s": 120}}  # for busy machines
    settings = config(data_dir=tmp_path, engines=patient, dragin={"max_tokens": 32})
    app = create_app(settings)
    async with serving(app, settings) as (server, url), aiohttp.ClientSession(url) as http:
        service = Live(url, app, server, http)
        for loop in ("ircot", "iter_retgen", "self_ask"):
            few = {"max_steps": 1, "top_k": 1, "timeout_s": 300}
            status, body = await service.ask(
                "Who directed Laserblast?", loop=loop, route="single", **few
            )
            assert status == 200, body
            answer = Answer.model_validate(body)
            assert answer.loop == loop
            assert answer.usage.retrievals >= 1
            assert answer.usage.llm_calls >= 1
            assert all(step.passages for step in answer.steps if step.query)
            cited = {citation.title for citation in answer.citations}
            assert cited <= {p.title for step in answer.steps for p in step.passages}
