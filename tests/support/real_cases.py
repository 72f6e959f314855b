"""Questions for a real model, with their settings and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from service.answer.events import AnswerReady, Failed
from service.answer.request import parse_request
from service.core.concurrency import closing, gather
from service.core.domain import LoopName, Problem, RouteName
from service.core.errors import RevelatorError
from service.core.settings import Settings
from service.retrieval.base import anyone
from service.runtime import Runtime, open_runtime
from tests.support.claims import SAMPLE, Told

AT_ONCE: Final = 4
FEW: Final[dict[str, Any]] = {"max_steps": 2, "top_k": 2}
CALLS, RETRIEVALS = 10, 4  # limits of a question, which bound the cost of a rambling model
QUESTIONS: Final[dict[RouteName, str]] = {
    "direct": "Who directed Laserblast?",
    "single": "Who directed Once Upon a Time in the West?",
    "compound": "Who directed Holiday in Tyrol and who directed Laserblast?",
    "complex": "When was the director of Once Upon a Time in the West born?",
}
LOOPS: Final[tuple[LoopName, ...]] = ("anrag", "autorag", "dragin", "efficientrag")
SAMPLED: Final = ("sample-single-07", "sample-compound-01", "sample-complex-08")
UNKNOWN: Final = "Zxqvorn blattfibber quoxil?"  # contains no word of the sample corpus


@dataclass(frozen=True)
class Case:
    """A question with a route and a loop. `fields` are additional request fields."""

    name: str
    question: str
    fields: tuple[tuple[str, Any], ...]


def make_cases() -> dict[str, Case]:
    """Return a case for every route and loop."""
    cases = [_case("direct", QUESTIONS["direct"], route="direct")]
    routes: tuple[RouteName, ...] = ("single", "compound", "complex")
    cases += [
        _case(f"{route}-{loop}", QUESTIONS[route], route=route, loop=loop)
        for route, loop in product(routes, LOOPS)
    ]
    return {case.name: case for case in cases}


def make_unknown_cases() -> dict[str, Case]:
    """Return cases of a question that no passage answers."""
    fields = {"route": "single", "retriever": "bm25"}
    cases = [_case(f"unknown-{loop}", UNKNOWN, loop=loop, **fields) for loop in LOOPS]
    return {case.name: case for case in cases}


def make_sample_cases() -> dict[str, Case]:
    """Return some of the sample's questions as people would ask them, without a route or a loop."""
    lines = (SAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [(row["id"], row["question"]) for row in map(json.loads, lines)]
    return {name: _case(name, question) for name, question in asked if name in SAMPLED}


def _case(name: str, question: str, **fields: Any) -> Case:
    return Case(name, question, tuple(fields.items()))


def settings_for(
    engine: Mapping[str, Any], templates: str, data: Path, **sections: Any
) -> Settings:
    """Return settings with small limits: few passages, few steps and short drafts."""
    few = {"max_llm_calls": CALLS, "max_retrievals": RETRIEVALS, "timeout_s": 300.0}
    mode = "few_shot" if templates == "full" else "tuned"
    role = {"templates": templates}
    values: dict[str, Any] = {
        "data_dir": data,
        "engines": {"default": {"timeout_s": 280.0, **engine}},
        "roles": {"revelator": role, "reader": role},
        "hanrag": {"fetch_k": 2, "judging": "pointwise"},
        "autorag": {"mode": mode},
        "dragin": {"max_tokens": 32},
        "limits": few,
    }
    return Settings.model_validate(values | sections)


async def ask_all(
    settings: Settings, cases: Sequence[Case]
) -> dict[str, Told | Problem | RevelatorError]:
    """Ask all cases, a few at the same time, on one runtime."""
    results: dict[str, Told | Problem | RevelatorError] = {}
    async with open_runtime(settings) as runtime:
        for engine in runtime.engines.values():
            await engine.check()
        waiting = iter(cases)

        async def lane() -> None:
            for case in waiting:
                results[case.name] = await ask(runtime, case, **FEW)

        await gather([lane] * AT_ONCE)
    return results


async def ask(runtime: Runtime, case: Case, **fields: Any) -> Told | Problem | RevelatorError:
    try:
        asked = {"question": case.question, **dict(case.fields), **fields}
        request = await runtime.prepare(parse_request(asked), anyone)
    except RevelatorError as error:
        return error
    async with closing(runtime.ask(request)) as stream:
        events = [event async for event in stream]
    (end,) = [event for event in events if isinstance(event, AnswerReady | Failed)]
    return Told(events, end.body) if isinstance(end, AnswerReady) else end.problem
