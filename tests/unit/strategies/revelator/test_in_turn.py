"""GEN over each passage alone, for a reader that other passages distract (METHODS.md §1.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.answer.budget import Limits
from service.answer.events import Token
from service.core.domain import Answer
from service.core.settings import Settings
from tests.support.asking import body_of, events_of, passage
from tests.support.scripted import SHORT_FORMS, ScriptStep

pytestmark = pytest.mark.anyio
QUESTION = "Who composed Norma?"
HITS = {
    "": [
        passage("aida", "Aida is an opera by Giuseppe Verdi.", "Aida"),
        passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma"),
        passage("tosca", "Tosca is an opera by Giacomo Puccini.", "Tosca"),
    ]
}
SEPARATE = replace(SHORT_FORMS, passages=3, reads_separately=True)
ASKED: dict[str, Any] = {
    "route": "single", "loop": "one_retrieval", "capabilities": SEPARATE,
}  # fmt: skip


def over(title: str, reply: str, logprob: float = -1.0, **more: Any) -> ScriptStep:
    """One word of a reply has the probability; the script fails where passages are together."""

    def alone(request: Any) -> bool:
        text = request.messages[0].content
        return "Task: answer" in text and f"{title}:" in text and "Doc2" not in text

    return ScriptStep(reply, alone, logprob=logprob, **more)


async def ask(*script: ScriptStep, **more: Any) -> Answer:
    return await body_of(script, HITS, QUESTION, **(ASKED | more))


async def test_the_surest_answer_stands_and_is_shown_once() -> None:
    script = [over("Aida", "Verdi", -2.0), over("Norma", "Bellini", -0.1), over("Tosca", "Puccini")]
    events = await events_of(script, HITS, QUESTION, **ASKED)
    assert [event.text for event in events if isinstance(event, Token)] == ["Bellini"]
    body = next(event.body for event in events if event.event == "answer")  # type: ignore[attr-defined]
    assert (body.answer, body.steps[-1].flags) == ("Bellini", [])
    assert (body.usage.llm_calls, body.usage.retrievals) == (3, 1)
    assert [citation.passage_id for citation in body.citations] == ["norma"]


async def test_where_it_declines_it_is_passed_over_however_sure() -> None:
    said = "no answer found"
    body = await ask(over("Aida", said, -0.01), over("Norma", "Bellini", -3.0), over("Tosca", said))
    assert body.answer == "Bellini"


async def test_of_equally_sure_answers_the_best_ranked_stands() -> None:
    body = await ask(over("Aida", "Verdi"), over("Norma", "Bellini"), over("Tosca", "Puccini"))
    assert body.answer == "Verdi"


async def test_declined_over_every_passage() -> None:
    body = await ask(*(over(title, "no answer found") for title in ("Aida", "Norma", "Tosca")))
    assert (body.answered, body.steps[-1].flags) == (False, ["declined"])


async def test_what_cannot_be_read_is_asked_again_over_its_passage() -> None:
    empty = [over("Aida", "no answer found"), over("Norma", ""), over("Tosca", "no answer found")]
    body = await ask(*empty, over("Norma", "Bellini"))
    assert (body.answer, body.usage.llm_calls) == ("Bellini", 4)


async def test_an_answer_that_was_cut_is_flagged() -> None:
    body = await ask(
        over("Aida", "no answer found"), over("Tosca", "no answer found"),
        over("Norma", "Vincenzo Bellini of", finish="length"),
    )  # fmt: skip
    assert (body.answer, body.steps[-1].flags) == ("Vincenzo Bellini of", ["shortened"])


async def test_at_a_limit_the_answers_that_are_there_count() -> None:
    body = await ask(
        over("Aida", "Verdi"), over("Norma", "Bellini", -0.1), limits=Limits(max_llm_calls=2)
    )
    assert (body.answer, body.stopped_by) == ("Bellini", "budget")


async def test_one_passage_streams() -> None:
    script = [over("Aida", "Giuseppe Verdi")]
    events = await events_of(script, HITS, QUESTION, top_k=1, **ASKED)
    assert len([event for event in events if isinstance(event, Token)]) == 2


async def test_a_reader_that_is_not_distracted_reads_all_at_once() -> None:
    together = ScriptStep("Bellini", ["Task: answer", "Aida:", "Norma:", "Tosca:"])
    body = await ask(together, capabilities=replace(SEPARATE, reads_separately=False))
    assert (body.answer, body.usage.llm_calls) == ("Bellini", 1)


async def test_the_samples_vote_over_the_passage_of_the_surest_answer() -> None:
    drawn = [over("Norma", "Verdi", -9.0), over("Norma", "Verdi", -9.0)]
    first = [
        over("Aida", "no answer found"),
        over("Norma", "Bellini"),
        over("Tosca", "Puccini", -4.0),
    ]
    body = await ask(*first, *drawn, samples=3)
    assert (body.answer, body.steps[-1].flags) == ("Verdi", ["outvoted"])


async def test_its_probability_decides_on_another_route() -> None:
    """Of the surest answer, not of the latest call."""
    sure = [over("Aida", "Verdi", -0.01), over("Norma", "x y", -5.0), over("Tosca", "z", -5.0)]
    settings = Settings.model_validate({
        "escalation": {"when": "always", "below": 0.5}, "hanrag": {"skip": ["relevance"]},
    })  # fmt: skip
    body = await ask(*sure, loop="anrag", settings=settings)
    assert (body.answer, body.route) == ("Verdi", "single")
