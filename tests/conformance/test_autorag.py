"""Auto-RAG's message lists (roles, text, white space) for every branch of METHODS.md §2.2, §2.3."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from service.answer.calls import Roles
from service.answer.events import StepEnd, Stop
from service.answer.inquiry import Inquiry
from service.core.settings import Settings
from service.core.settings.loops import AutoragSettings
from service.engines.base import GenerationRequest
from service.prompts.templates import TemplateSet
from service.strategies import autorag
from service.strategies.autorag import Autorag
from tests.support.asking import ScriptedRetriever, inquiry, loop_events, passage, standing
from tests.support.scripted import SHORT_FORMS, ScriptedGenerator, ScriptStep

GOLDEN = Path(__file__).parent / "autorag"
CASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return case


def inquiry_of(case: dict[str, Any], engine: ScriptedGenerator) -> Inquiry:
    hits = {
        query: [passage(f"{query}#{n}", text, "A title") for n, text in enumerate(texts, 1)]
        for query, texts in case["hits"].items()
    }
    own = {name: value for name, value in case.get("settings", {}).items() if name == "mode"}
    asked = inquiry(
        engine,
        ScriptedRetriever(hits),
        case["question"],
        Settings(autorag=AutoragSettings(**own)),
        dict(**case.get("limits", {})),
        loop="autorag",
        **case.get("request", {}),
    )
    role = replace(asked.roles.reader, templates=TemplateSet(case.get("templates", "full")))
    asked.roles = Roles(role, role, role)
    return asked


async def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """What the loop asked the engine, and what came out."""
    able = replace(SHORT_FORMS, context_tokens=case.get("context_tokens"))
    outputs = map(ScriptStep, case["outputs"])
    parametric = case.get("settings", {}).get("max_parametric", autorag.MOST_PARAMETRIC)
    with (
        ScriptedGenerator(outputs, ordered=True, capabilities=able) as engine,
        mock.patch.object(autorag, "MOST_PARAMETRIC", parametric),
    ):
        asked = inquiry_of(case, engine)
        loop = loop_events(Autorag, asked, case["question"])
        events = [event async for event in loop]
    ends = [event for event in events if isinstance(event, StepEnd)]
    stop = next(event for event in events if isinstance(event, Stop))
    return {
        "calls": [_call(request) for request in engine.requests],
        "queries": [request.query for request in asked.retriever.requests],  # type: ignore[attr-defined]
        "answer": ends[-1].answer,
        "tokens": standing(events),
        "flags": [end.flags for end in ends],
        "answered": stop.answered,
        "stopped_by": stop.stopped_by,
    }


def _call(request: GenerationRequest) -> dict[str, Any]:
    call: dict[str, Any] = {"max_tokens": request.max_tokens, "stop": list(request.stop)}
    if request.prompt is not None:
        return call | {"prompt": request.prompt}
    return call | {"messages": [[m.role, m.content] for m in request.messages]}


@pytest.mark.parametrize("name", CASES)
async def test_messages_are_the_golden_ones(name: str) -> None:
    case = load(name)
    assert await run_case(case) == case["expected"]
