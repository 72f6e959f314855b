"""EfficientRAG as it comes with the wheel: shipped labeler, filter, reader, stores and sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.core.domain import Answer
from tests.support.live import config, live
from tests.support.tiny import open_tiny

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]
ASKED: dict[str, Any] = {"loop": "efficientrag", "route": "single", "timeout_s": 300}


async def answer(question: str, data_dir: Path) -> Answer:
    engine = open_tiny(timeout_s=120)
    settings = config(data_dir=data_dir)
    try:
        async with live(engine, settings=settings, own_stores=True) as service:
            status, body = await service.ask(question, **ASKED)
    finally:
        await engine.aclose()
    assert status == 200, body
    return Answer.model_validate(body)


async def test_a_bridge_is_crossed_without_a_call_of_the_model(tmp_path: Path) -> None:
    body = await answer("Where was the director of Goodbye, Franziska born?", tmp_path)
    first, second, read = body.steps
    told = {passage.passage_id: str(passage.reason) for passage in first.passages}
    assert told["2wiki-02228"].startswith("continue")
    assert "Helmut Käutner" in str(first.thought)
    assert "Helmut Käutner" in str(second.query)
    assert "2wiki-02229" in {passage.passage_id for passage in second.passages if passage.kept}
    assert (read.kind, read.llm_calls, body.usage.llm_calls) == ("answer", 1, 1)
    assert body.answer == "Düsseldorf, Germany"


async def test_a_single_fact_takes_one_search(tmp_path: Path) -> None:
    body = await answer("Who directed Laserblast?", tmp_path)
    assert (body.usage.retrievals, body.usage.llm_calls) == (1, 1)
    assert body.citations[0].title == "Laserblast"
