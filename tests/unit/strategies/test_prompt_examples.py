"""A reply that is an example of its prompt is asked for once more and then counts as none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from service.answer.events import AnswerReady
from service.answer.fold import collect
from service.core.domain import Answer
from service.core.settings import Settings
from service.strategies.pipeline import answer_stream
from tests.support.asking import ScriptedRetriever, body_of, events_of, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio
QUESTION = "Where was the composer of Norma born?"
HITS = {"": [passage("norma", "Norma is an opera by Vincenzo Bellini of Catania.", "Norma")]}
RELEVANT = ScriptStep("true", match="Judge whether", times=None)
ANSWER = "Where the documents do not hold"


async def ask(script: Sequence[ScriptStep], **options: Any) -> Answer:
    return await body_of(list(script), HITS, QUESTION, prompts="full", **options)


async def test_twice_an_example_is_not_found() -> None:
    script = [RELEVANT, ScriptStep("Meridian Spire", match=ANSWER, times=2)]
    body = await ask(script, route="single")
    assert not body.answered
    assert body.steps[0].answer is None
    assert body.steps[0].flags == ["prompt_example"]
    assert body.citations == []
    assert body.answer == "No answer was found in the passages."


async def test_the_second_reply_counts_and_is_hotter() -> None:
    hot = ScriptStep("Catania", match=lambda request: request.temperature > 0)
    script = [RELEVANT, ScriptStep("Meridian Spire", match=ANSWER), hot]
    events = await events_of(script, HITS, QUESTION, prompts="full", route="single")
    (body,) = [event.body for event in events if isinstance(event, AnswerReady)]
    assert (body.answered, body.answer) == (True, "Catania")
    assert "prompt_example" not in body.steps[0].flags
    assert [event.event for event in events].count("withdraw") == 1  # type: ignore[attr-defined]


async def test_what_the_passages_say_too_is_an_answer() -> None:
    hits = {"": [passage("spire", "Norma is played in the Meridian Spire.", "Norma")]}
    script = [RELEVANT, ScriptStep("Meridian Spire", match=ANSWER)]
    body = await body_of(script, hits, QUESTION, prompts="full", route="single")
    assert body.answered


async def test_a_sub_question_out_of_the_examples_is_asked_for_again() -> None:
    example = "Who was the architect of the Corvale Opera House?"
    script = [
        ScriptStep("no", match="Decide whether the search can end"),
        ScriptStep(example, match="Write the question to search for next", times=2),
        RELEVANT,
        ScriptStep("Catania", match=ANSWER),
        ScriptStep("yes", match="Decide whether the search can end"),
        ScriptStep("Catania", match="worked out in steps"),
    ]
    body = await ask(script, route="complex")
    retrieved = body.steps[1]
    assert retrieved.question == QUESTION
    assert {"prompt_example", "repaired"} <= set(retrieved.flags)
    assert body.answered


async def test_a_decomposition_out_of_the_examples_is_asked_for_again() -> None:
    copied = json.dumps(
        {"thought": "", "decomposition": ["Who invented the telescope mount used at Kestrel Hill?"]}
    )
    script = [
        ScriptStep(copied, match="Take a question apart", times=2),
        RELEVANT,
        ScriptStep("Catania", match=ANSWER),
    ]
    body = await ask(script, route="compound")
    assert {"prompt_example", "repaired"} <= set(body.steps[0].flags)
    assert body.answered
    assert all("Kestrel" not in (step.question or "") for step in body.steps)


async def test_autorag_does_not_search_for_its_demonstrations() -> None:
    query = "Initial Query: founder of the Halvard Lantern Works"
    own = "Analysis: The composer.\n\nInitial Query: composer of Norma"
    ends = "Intermediate Answer_1: He is from Catania.\n\nFinal Answer: Catania"
    script = [ScriptStep(f"Analysis: Who?\n\n{query}"), ScriptStep(own), ScriptStep(ends)]
    with ScriptedGenerator(script, ordered=True) as engine:
        asked = inquiry(
            engine, ScriptedRetriever(HITS), QUESTION, prompts="full", loop="autorag",
            route="single", settings=Settings.model_validate({"autorag": {"mode": "few_shot"}}),
        )  # fmt: skip
        body = await collect(answer_stream(asked))
    assert isinstance(body, Answer)
    assert [step.query for step in body.steps if step.query] == ["composer of Norma"]
    assert body.answer == "Catania"
