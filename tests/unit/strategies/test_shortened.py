"""What was cut is never passed off as whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from service.answer.request import LONGEST_QUESTION
from service.core.settings import AutoragSettings, Settings
from service.engines.base import Capabilities
from service.strategies.pipeline import answer_stream
from service.strategies.planner import JSON_TOKENS, decompose
from service.strategies.reading.questions import parse_decomposition
from tests.stubs.signal_engine import SignalEngine, spans_in
from tests.support.asking import ScriptedRetriever, body_of, inquiry
from tests.support.scripted import ScriptedGenerator, ScriptStep, render
from tests.unit.strategies.test_handlers import (
    BELLINI,
    NOISE,
    NORMA,
    QUESTION,
    flags,
    relevant,
    say,
)

pytestmark = pytest.mark.anyio
PARTS = json.dumps({"thought": "t", "decomposition": ["Who wrote Norma?", "Where is it set?"]})
CUT = PARTS[: PARTS.index("is it set")]


def cut(match: Any, reply: str, times: int = 1) -> ScriptStep:
    return ScriptStep(match=match, reply=reply, times=times, finish="length")


async def parts(*script: ScriptStep, **options: Any) -> tuple[Any, list[Any], ScriptedGenerator]:
    engine = ScriptedGenerator(script, **options)
    from service.answer.inquiry import Scope

    step = Scope(inquiry(engine, ScriptedRetriever({}), "q")).step("decompose")
    found = await decompose(step, "both?", 8)
    engine.assert_finished()
    return found, step.flags, engine


async def test_a_decomposition_that_is_cut_is_asked_for_again_with_room() -> None:
    found, flagged, engine = await parts(cut(None, CUT), ScriptStep(PARTS))
    assert found.questions == ("Who wrote Norma?", "Where is it set?")
    assert flagged == []
    assert [r.max_tokens for r in engine.requests] == [JSON_TOKENS, 3 * JSON_TOKENS]
    assert [r.temperature for r in engine.requests] == [0.0, 0.0]


async def test_a_decomposition_that_stays_cut_says_so() -> None:
    found, flagged, _ = await parts(cut(None, CUT), cut(None, CUT))
    assert found.questions == ("Who wrote Norma?",)
    assert flagged == ["repaired", "shortened"]


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (PARTS, False),
        (f"Sure!\n```json\n{PARTS}\n```", False),
        ('["One?", "Two?"]', False),
        ("1. One?\n2. Two?", False),
        ("Who? I take it apart:\n1. One?\n2. Two?", False),
        ("One?\nTwo?", False),
        ("1. One?\n2. Two?\nThree?", True),
        ("- One?\nThree?\n- Two?", True),
        (PARTS.replace('"', "'"), True),
        ('{"decomposition": ["One?", "Two?", "Thr', True),
        ('{"decomposition": ["One?", "Two?", 3]}', True),
        ('{"decomposition": ["One?", "Two?", {"note": "Three?"}]}', True),
    ],
)
def test_repair_is_never_silent(text: str, repaired: bool) -> None:
    decomposed = parse_decomposition(text)
    assert decomposed is not None
    assert (len(decomposed.questions), decomposed.repaired) == (2, repaired)


async def test_one_part_is_the_question_as_it_was_asked() -> None:
    asked = "Who, pray, composed Norma?"
    script = [
        say("Task: decompose", json.dumps({"thought": "", "decomposition": ["Who made it?"]})),
        *relevant("Norma"),
        say(["Task: answer", asked], "Bellini"),
    ]
    body = await body_of(script, {asked: [NORMA, NOISE]}, asked, route="compound")
    assert body.answer == "Bellini"
    assert [step.query for step in body.steps] == [None, asked]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Norma was composed by Vincenzo", {"shortened"}),
        ("Bellini\nQuestion: Who", {"repaired"}),
    ],
)
async def test_an_answer_that_is_cut_says_so(reply: str, expected: set[str]) -> None:
    script = [*relevant("Norma"), cut("Task: answer", reply)]
    body = await body_of(script, {"": [NORMA, NOISE]}, "Who composed Norma?", route="single")
    assert flags(body) == expected


async def test_an_answer_that_the_deadline_cuts_says_so() -> None:
    script = [
        *relevant("Norma"),
        ScriptStep(match="Task: answer", reply=["Vincenzo", " Bellini"], delay=0.3),
    ]
    limits = {"timeout_s": 0.5}
    body = await body_of(script, {"": [NORMA, NOISE]}, "q?", route="single", limits=limits)
    assert (body.answer, flags(body)) == ("Vincenzo", {"shortened"})


async def test_a_refined_question_that_is_cut_is_not_used() -> None:
    script = [
        say("Task: ending", "no", 2),
        cut(["Task: refine", '""nothing""'], "Where was the composer of the opera Norma who"),
        say(["Task: refine", '""nothing""'], "Who composed Norma?"),
        *relevant("Norma", "Bellini"),
        say(["Task: answer", "Who composed"], "Bellini"),
        cut("Task: refine", "In which city was Vincenzo Bellini born? And then"),
        say(["Task: answer", "In which city was Vincenzo Bellini born?"], "Catania"),
        say("Task: ending", "yes"),
        say("Task: final", "Catania"),
    ]
    hits = {"Norma": [NORMA, NOISE], "Bellini": [BELLINI, NOISE]}
    body = await body_of(script, hits, QUESTION, route="complex")
    queries = [step.query for step in body.steps if step.query]
    assert queries == ["Who composed Norma?", "In which city was Vincenzo Bellini born?"]


async def test_autorag_s_answer_that_is_cut_says_so() -> None:
    script = [
        ScriptStep("Analysis: ?\n\nInitial Query: Norma"),
        cut(None, "Intermediate Answer: it.\n\nFinal Answer: Vincenzo"),
    ]
    body = await body_of(script, {"": [NORMA]}, QUESTION, route="single", loop="autorag")
    assert (body.answer, flags(body)) == ("Vincenzo", {"shortened"})


@pytest.mark.parametrize(
    ("mode", "queries", "flagged"),
    [
        ("few_shot", ["Norma", "Bellini"], set()),
        ("tuned", ["Norma", "the birthplace of the composer Vin", "Bellini"], {"shortened"}),
    ],
)
async def test_autorag_s_query_that_is_cut_is_not_used_but_by_published_models(
    mode: str, queries: list[str], flagged: set[str]
) -> None:
    script = [
        ScriptStep("Analysis: ?\n\nInitial Query: Norma"),
        cut(None, "Intermediate Answer: it.\n\nRefined Query: the birthplace of the composer Vin"),
        ScriptStep("Intermediate Answer: it.\n\nRefined Query: Bellini"),
        ScriptStep("Intermediate Answer: it.\n\nFinal Answer: Catania"),
    ]
    hits = {"Norma": [NORMA], "birth": [NOISE], "": [BELLINI]}
    settings = Settings(autorag=AutoragSettings(mode=mode))
    options = {"route": "single", "loop": "autorag", "settings": settings}
    body = await body_of(script, hits, QUESTION, **options)
    assert [step.query for step in body.steps if step.query] == queries
    assert (body.answer, flags(body) - {"repaired"}) == ("Catania", flagged)


MOST = 192  # tokens


class Slow(SignalEngine):
    """Reads a prompt at a limited rate, as engines on CPUs do."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, question_tokens=MOST)


@pytest.mark.parametrize("route", ["auto", "single", "compound", "complex", "direct"])
@pytest.mark.parametrize("unit", ["Who? ", "a ", "\n", "é"])
async def test_the_longest_question_is_a_bounded_prompt(route: Any, unit: str) -> None:
    """Before the first call, so that it cannot use up the time limit."""
    sizes: dict[str, int] = {}
    for question in ("x?", "Begin " + (unit * LONGEST_QUESTION)[: LONGEST_QUESTION - 11] + " end?"):
        engine = Slow(steps=[ScriptStep("no", times=None)])
        asked = inquiry(engine, ScriptedRetriever({"": [NORMA]}), question, route=route)
        events = [event async for event in answer_stream(asked)]
        prompts = [render(request) for request in engine.requests]
        assert prompts
        assert all("end?" in prompt for prompt in prompts) or question == "x?"
        assert ("shortened" in str(events)) == (len(spans_in(question)) > MOST)
        sizes[question] = max(len(spans_in(prompt)) for prompt in prompts)
    short, long = sizes.values()
    assert long <= short + 2 * MOST
