"""Self-Ask: its turns step by step, and whole questions over scripted engines."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.settings import Settings
from tests.support.asking import body_of, passage
from tests.support.scripted import ScriptStep

pytestmark = pytest.mark.anyio
NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was born in Catania in 1801.", "Bellini")
HITS = {"Who composed": [NORMA], "Where was Vincenzo": [BELLINI]}
QUESTION = "Where was the composer of Norma born?"
ONE, TWO = "Who composed Norma?", "Where was Vincenzo Bellini born?"
ASKED: dict[str, Any] = {"loop": "self_ask", "route": "single"}
FULL: dict[str, Any] = {**ASKED, "prompts": "full"}
NEEDED = "Are follow up questions needed here:"
FIRST = f" Yes.\nFollow up: {ONE}\nIntermediate answer: Vincenzo Bellini."


def turn(history: str, reply: str) -> ScriptStep:
    def ends(request: Any) -> bool:
        return request.messages[-1].content.endswith(f"Question: {QUESTION}\n{NEEDED}{history}")

    return ScriptStep(reply, ends)


def reads(question: str, reply: str) -> ScriptStep:
    return ScriptStep(reply, f"\nQuestion: {question}\nDoc1")


async def test_follow_up_questions_are_answered_by_searches() -> None:
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        reads(ONE, "Vincenzo Bellini"),
        turn(FIRST, f"\nFollow up: {TWO}"),
        reads(TWO, "Catania"),
        turn(f"{FIRST}\nFollow up: {TWO}\nIntermediate answer: Catania.",
             "\nSo the final answer is: Catania."),
    ]  # fmt: skip
    body = await body_of(script, HITS, QUESTION, **FULL)
    assert [(s.kind, s.question, s.query, s.answer, s.llm_calls) for s in body.steps] == [
        ("retrieve", ONE, ONE, "Vincenzo Bellini", 2),
        ("retrieve", TWO, TWO, "Catania", 2),
        ("answer", QUESTION, None, "Catania", 1),
    ]
    assert (body.answer, body.answered, body.stopped_by) == ("Catania", True, "answer")
    assert [c.passage_id for c in body.citations] == ["norma", "bellini"]


async def test_the_limit_of_follow_up_questions_asks_for_the_conclusion() -> None:
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        reads(ONE, "Vincenzo Bellini"),
        turn(f"{FIRST}\nSo the final answer is:", "Vincenzo Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, max_steps=1, **FULL)
    assert (body.answer, body.stopped_by) == ("Vincenzo Bellini", "max_steps")


async def test_a_question_asked_before_is_not_searched_again() -> None:
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        reads(ONE, "Vincenzo Bellini"),
        turn(FIRST, "Follow up: who composed Norma"),
        turn(f"{FIRST}\nSo the final answer is:", "Vincenzo Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, **FULL)
    assert (body.usage.retrievals, body.steps[-1].flags) == (1, ["refine_loop"])


async def test_an_answer_from_memory_is_flagged() -> None:
    script = [turn("", " No.\nSo the final answer is: Catania")]
    body = await body_of(script, HITS, QUESTION, **FULL)
    assert (body.answer, body.usage.retrievals, body.citations) == ("Catania", 0, [])
    assert body.steps[0].flags == ["closed_book"]


async def test_an_example_is_neither_asked_nor_an_answer() -> None:
    copied = "Follow up: Who founded Brannick?"
    script = [turn("", copied), turn("", f"Follow up: {ONE}"), reads(ONE, "Vincenzo Bellini")]
    script += [
        turn(FIRST, "So the final answer is: Estonia"),
        turn(f"{FIRST}\nSo the final answer is:", "Vincenzo Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, **FULL)
    assert body.answer == "Vincenzo Bellini"
    assert all("Brannick" not in (step.query or "") for step in body.steps)


async def test_what_nothing_tells_is_not_made_up() -> None:
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        reads(ONE, "no answer found"),
        turn(
            f" Yes.\nFollow up: {ONE}\nIntermediate answer: no answer found.",
            "So the final answer is: no answer found",
        ),
    ]
    body = await body_of(script, HITS, QUESTION, **FULL)
    assert not body.answered
    assert [step.flags for step in body.steps] == [["declined"], ["declined"]]


async def test_the_settings_may_let_the_model_answer_its_questions() -> None:
    own = Settings.model_validate({"answers": {"no_evidence": "closed_book"}})
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        ScriptStep("Vincenzo Bellini", f"\nQuestion: {ONE}\nAnswer:"),
        turn(FIRST, "So the final answer is: Vincenzo Bellini"),
    ]
    body = await body_of(script, {}, QUESTION, settings=own, **FULL)
    assert (body.answer, body.steps[0].flags) == (
        "Vincenzo Bellini",
        ["no_evidence", "closed_book"],
    )


async def test_a_set_without_the_prompt_asks_in_the_forms_of_the_roles() -> None:
    script = [
        ScriptStep(ONE, ["Task: refine", '""nothing""']),
        ScriptStep("Vincenzo Bellini", ["Task: answer", ONE]),
        ScriptStep("no", ["Task: ending", "Vincenzo"]),
        ScriptStep(TWO, ["Task: refine", "**answer-1**"]),
        ScriptStep("Catania", ["Task: answer", TWO]),
        ScriptStep("yes", ["Task: ending", "Catania"]),
        ScriptStep("Catania", "Task: final"),
    ]
    body = await body_of(script, HITS, QUESTION, **ASKED)
    assert (body.answer, body.usage.retrievals, body.usage.llm_calls) == ("Catania", 2, 7)
    assert [c.passage_id for c in body.citations] == ["norma", "bellini"]


async def test_the_last_call_concludes() -> None:
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        reads(ONE, "Vincenzo Bellini"),
        turn(f"{FIRST}\nSo the final answer is:", "Vincenzo Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, limits={"max_llm_calls": 3}, **FULL)
    assert (body.answer, body.stopped_by, body.usage.llm_calls) == ("Vincenzo Bellini", "budget", 3)
