"""Auto-RAG's events, step by step (METHODS.md §2.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    PassagesFound,
    QueryIssued,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
    Token,
    TokenRole,
)
from service.core.domain import Passage
from service.core.settings import Settings
from service.strategies import autorag
from service.strategies.autorag import Autorag
from tests.support.asking import ScriptedRetriever, inquiry, loop_events, passage, standing
from tests.support.scripted import ScriptedGenerator, ScriptStep

QUESTION = "In which city was the composer of Norma born?"
ASKS = "Analysis: The composer comes first.\n\nInitial Query: composer of Norma"
ASKS_ON = "Intermediate Answer_1: It is Bellini.\n\nRefined Query: birthplace of Bellini"
ANSWERS = "Intermediate Answer_2: Bellini was born in Catania.\n\nFinal Answer: Catania, Sicily"
HITS: dict[str, list[Passage]] = {
    "composer": [passage("norma", "Norma is by Bellini."), passage("milan", "It is from 1831.")],
    "birthplace": [passage("bellini", "Bellini was born in Catania, Sicily.")],
}

MEMORY = Settings.model_validate({"answers": {"no_evidence": "closed_book"}})


async def run(
    outputs: Sequence[Any],
    hits: Mapping[str, Sequence[Passage] | Exception] = HITS,
    as_role: TokenRole = "answer",
    scope_of: str = "",
    **options: Any,
) -> list[BaseEvent]:
    steps = [o if isinstance(o, ScriptStep) else ScriptStep(o) for o in outputs]
    with ScriptedGenerator(steps, ordered=True) as engine:
        asked = inquiry(engine, ScriptedRetriever(hits), QUESTION, loop="autorag", **options)
        loop = loop_events(Autorag, asked, QUESTION, as_role, scope_of)
        return [event async for event in loop]


def stop(events: list[BaseEvent]) -> Stop:
    assert isinstance(events[-1], Stop)
    return events[-1]


def ends(events: list[BaseEvent]) -> list[StepEnd]:
    return [event for event in events if isinstance(event, StepEnd)]


async def test_the_worked_example_as_events() -> None:
    events = await run([ASKS, ASKS_ON, ANSWERS])
    told = [e for e in events if not isinstance(e, Token)]
    assert [(type(e).__name__, e.step) for e in told] == [
        ("StepStart", "1"), ("ThoughtWritten", "1"), ("QueryIssued", "1"), ("PassagesFound", "1"),
        ("StepEnd", "1"),
        ("StepStart", "2"), ("ThoughtWritten", "2"), ("QueryIssued", "2"), ("PassagesFound", "2"),
        ("StepEnd", "2"),
        ("StepStart", "3"), ("ThoughtWritten", "3"), ("StepEnd", "3"),
        ("Stop", None),
    ]  # fmt: skip
    assert [e.kind for e in events if isinstance(e, StepStart)] == ["retrieve"] * 2 + ["answer"]
    assert [e.query for e in events if isinstance(e, QueryIssued)] == [
        "composer of Norma",
        "birthplace of Bellini",
    ]
    assert [e.answer for e in ends(events)] == [
        "It is Bellini.",
        "Bellini was born in Catania.",
        "Catania, Sicily",
    ]
    thoughts = [e.text for e in events if isinstance(e, ThoughtWritten)]
    assert thoughts == [
        "The composer comes first.",
        "It is Bellini.",
        "Bellini was born in Catania.",
    ]
    assert stop(events) == Stop(stopped_by="answer", answered=True)
    assert [e.usage.llm_calls for e in ends(events)] == [1, 1, 1]
    assert standing(events, "draft", "1") == "Intermediate Answer_1: It is Bellini."
    assert standing(events, "draft", "2") == "Intermediate Answer_2: Bellini was born in Catania."
    answer = [e.text for e in events if isinstance(e, Token) and e.role == "answer"]
    assert answer == ["Catania, Sicily"]


async def test_all_shown_passages_are_kept_and_none_is_shown_twice() -> None:
    hits = {"": [passage(f"p{n}", f"Text {n}.") for n in range(5)]}
    events = await run([ASKS, ASKS_ON, ANSWERS], hits, top_k=3)
    found = [e for e in events if isinstance(e, PassagesFound)]
    assert [[p.passage_id for p in e.passages] for e in found] == [["p0", "p1", "p2"], ["p3", "p4"]]
    assert all(p.kept for e in found for p in e.passages)


async def test_a_written_document_is_no_retrieval() -> None:
    events = await run([ASKS, ASKS_ON, " Bellini came from Catania.", ANSWERS], max_steps=1)
    starts = [e for e in events if isinstance(e, StepStart)]
    assert [(e.kind, e.question) for e in starts] == [
        ("retrieve", QUESTION),
        ("retrieve", "birthplace of Bellini"),
        ("answer", QUESTION),
    ]
    assert len([e for e in events if isinstance(e, QueryIssued)]) == 1
    assert [e.flags for e in ends(events)] == [[], ["closed_book"], []]
    assert standing(events, "draft", "2").startswith("Bellini came from Catania.")
    assert [e.usage.llm_calls for e in ends(events)] == [1, 2, 1]


async def test_an_empty_direct_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autorag, "MOST_PARAMETRIC", 0)
    events = await run([ASKS, ASKS_ON, "", ""], max_steps=1)
    assert stop(events) == Stop(stopped_by="max_steps", answered=False)


async def test_time_runs_out_in_the_middle_of_the_last_answer() -> None:
    never = ScriptStep("late", gate=asyncio.Event())
    words = ScriptStep("Final Answer: Catania" + " or so" * 100, delay=0.02)
    events = await run([ASKS, never, words], limits={"timeout_s": 1.5})
    assert stop(events) == Stop(stopped_by="deadline", answered=True)
    assert standing(events, "answer").startswith("Catania")
    assert standing(events, "answer") == ends(events)[-1].answer


async def test_a_plan_is_no_answer() -> None:
    """Time runs out with passages unread and only turn 0's reasoning: NAIVE, not the analysis."""
    never = ScriptStep("late", gate=asyncio.Event())
    events = await run([ASKS, never, never, never], limits={"timeout_s": 0.8})
    assert stop(events) == Stop(stopped_by="deadline", answered=False)


async def test_time_runs_out_with_nothing_at_all() -> None:
    never = ScriptStep("late", gate=asyncio.Event())
    events = await run([never, never], limits={"timeout_s": 0.2}, settings=MEMORY)
    assert stop(events) == Stop(stopped_by="deadline", answered=False)
    events = await run([never], limits={"timeout_s": 0.2})
    assert stop(events) == Stop(stopped_by="deadline", answered=False)


FEW_SHOT = Settings.model_validate({"autorag": {"mode": "few_shot"}})


async def test_naive_answers_from_the_passages_found() -> None:
    direct = ScriptStep(
        "Catania", match=["Task: answer", "Norma is by Bellini.", "It is from 1831."]
    )
    events = await run([ASKS, "Hm.", "Well.", "Hm.", direct], settings=FEW_SHOT, max_steps=9)

    assert ends(events)[-1].answer == "Catania"
    assert "fallback_direct" in ends(events)[-1].flags
    assert "closed_book" not in ends(events)[-1].flags


@pytest.mark.parametrize("policy", ["abstain", "top3_unfiltered"])
async def test_naive_answers_from_memory_only_where_the_settings_say_so(policy: str) -> None:
    own = {"autorag": {"mode": "few_shot"}, "answers": {"no_evidence": policy}}
    settings = Settings.model_validate(own)
    events = await run(["loop " * 9], settings=settings)
    assert not stop(events).answered
    assert standing(events, "answer") == ""
    outputs = [ASKS, "Intermediate Answer_1: None.\n\nFinal Answer: Catania"]
    events = await run(outputs, {}, settings=settings)
    assert not stop(events).answered


async def test_naive_asks_once_more_where_it_gets_an_example_of_the_prompt() -> None:
    settings = Settings.model_validate({"autorag": {"mode": "few_shot"}})
    turns = [ASKS, "Hm.", "Well.", "Hm."]
    asked: dict[str, Any] = {"settings": settings, "max_steps": 9, "prompts": "full"}
    events = await run([*turns, "Meridian Spire", "**Answer:** Catania"], **asked)
    assert ends(events)[-1].answer == standing(events, "answer") == "Catania"
    assert {"fallback_direct", "repaired"} <= set(ends(events)[-1].flags)
    assert "prompt_example" not in ends(events)[-1].flags
    events = await run([*turns, "Meridian Spire", "Meridian Spire"], **asked)
    assert not stop(events).answered
    assert "prompt_example" in ends(events)[-1].flags


async def test_a_direct_answer_that_declines_is_none() -> None:
    events = await run(["loop " * 9, "I don't know."], settings=MEMORY)
    assert not stop(events).answered
    assert standing(events, "answer") == ""
    assert {"fallback_direct", "declined"} <= set(ends(events)[-1].flags)


AGAIN = "Intermediate Answer_1: Nothing.\n\nRefined Query: composer of Norma"


async def test_an_untrained_model_that_asks_the_same_again_ends_without_progress() -> None:
    """The second search has what the first did not show; the third brings nothing new."""
    again = AGAIN.replace("composer of Norma", "the composer of Norma?")
    outputs = [ASKS, AGAIN, again, again]
    events = await run(outputs, settings=FEW_SHOT, top_k=1)
    assert [end.flags for end in ends(events)] == [
        [], [], ["no_new_evidence"], ["no_new_evidence", "no_progress"], ["declined"],
    ]  # fmt: skip
    assert sum(isinstance(event, QueryIssued) for event in events) == 4
    assert stop(events).stopped_by == "answer"
    nothing = await run([ASKS, AGAIN], {}, settings=FEW_SHOT)
    assert ends(nothing)[-1].flags == ["no_evidence", "no_progress"]
    assert not stop(nothing).answered


async def test_the_same_document_is_not_written_twice() -> None:
    reads = ScriptStep("Intermediate Answer_2: Still nothing.\n\nRefined Query: composer of Norma")
    outputs = [ASKS, ASKS_ON, AGAIN, ScriptStep("Norma is by Bellini.\n"), reads]
    events = await run(outputs, settings=FEW_SHOT, max_steps=2)
    assert [end.flags for end in ends(events)][:3] == [[], [], ["closed_book", "no_progress"]]
