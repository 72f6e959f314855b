"""ITER-RETGEN: its query, and whole questions over scripted engines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.asking import body_of, passage
from tests.support.scripted import ScriptStep

pytestmark = pytest.mark.anyio
NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was born in Catania in 1801.", "Bellini")
HITS = {"Vincenzo Bellini": [BELLINI], "Where was": [NORMA]}
QUESTION = "Where was the composer of Norma born?"
FIRST = "Norma was composed by Vincenzo Bellini. So the answer is Rome."
ASKED: dict[str, Any] = {"loop": "iter_retgen", "route": "single"}


def writes(context: str, reply: str) -> ScriptStep:
    """A generation from the passages of one retrieval alone."""
    return ScriptStep(reply, lambda request: f"Context:\n[1] {context}" in (request.prompt or ""))


async def test_the_same_generation_again_ends_early() -> None:
    script = [writes("Norma: ", FIRST), writes("Bellini: ", FIRST)]
    body = await body_of(script, HITS, QUESTION, max_steps=9, **ASKED)
    assert (body.answer, body.usage.retrievals, body.usage.llm_calls) == ("Rome", 2, 2)
    assert [step.kind for step in body.steps] == ["retrieve", "retrieve", "answer"]


async def test_the_newest_answer_stands_at_a_limit() -> None:
    script = [writes("Norma: ", FIRST)]
    body = await body_of(script, HITS, QUESTION, limits={"max_retrievals": 1}, **ASKED)
    assert (body.answer, body.stopped_by) == ("Rome", "budget")
    assert [step.kind for step in body.steps] == ["retrieve", "answer"]


async def test_a_generation_that_concludes_nothing_leaves_its_passages_to_a_reader() -> None:
    script = [
        writes("Norma: ", "Norma was composed by Vincenzo Bellini."),
        ScriptStep("Catania", "Task: answer"),
    ]
    body = await body_of(script, {"": [NORMA]}, QUESTION, max_steps=1, **ASKED)
    assert (body.answer, [step.kind for step in body.steps]) == ("Catania", ["retrieve", "answer"])


async def test_a_copied_generation_is_neither_answer_nor_query() -> None:
    copied = "The Glass Orchard was directed by Paul Renner. So the answer is Paul Renner."
    script = [writes("Norma: ", copied), ScriptStep("Catania", "Task: answer")]
    body = await body_of(script, HITS, QUESTION, **ASKED)
    assert body.answer == "Catania"
    assert body.steps[0].flags == ["prompt_example"]
    assert body.usage.retrievals == 1


async def test_a_declined_generation_is_no_answer() -> None:
    told = "It is not known where he was born. So the answer is no answer found."
    script = [writes("Norma: ", told)]
    body = await body_of(script, HITS, QUESTION, max_steps=1, **ASKED)
    assert not body.answered
    assert body.steps[0].flags == ["declined"]
    assert body.steps[0].answer is None


async def test_nothing_found_abstains_without_a_call() -> None:
    body = await body_of([], {}, QUESTION, **ASKED)
    assert (body.answered, body.usage.llm_calls, body.usage.retrievals) == (False, 0, 1)
    assert body.steps[0].flags == ["no_evidence"]
