"""GEN over one passage at a time, for a reader that other passages distract (METHODS.md §1.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.answer.budget import Limits
from service.answer.events import Judgement, Token
from service.core.domain import Answer
from service.core.settings import Settings
from service.prompts.templates import PassageText
from service.strategies.reader import by_document, joined
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
IN_TURN = replace(SHORT_FORMS, passages=3, one_at_a_time=True)
ASKED: dict[str, Any] = {
    "route": "single", "loop": "one_retrieval", "capabilities": IN_TURN,
}  # fmt: skip


TITLES = ("Aida", "Norma", "Tosca")
NONE = "no answer found"


def over(title: str, reply: str, logprob: float = -1.0, **more: Any) -> ScriptStep:
    """One word of a reply has the probability; the script fails where passages are together."""

    def alone(request: Any) -> bool:
        text = request.messages[0].content
        return "Task: answer" in text and f"{title}:" in text and "Doc2" not in text

    return ScriptStep(reply, alone, logprob=logprob, **more)


async def ask(*script: ScriptStep, **more: Any) -> Answer:
    return await body_of(script, HITS, QUESTION, **(ASKED | more))


async def test_the_first_passage_that_answers_ends_the_reading() -> None:
    script = [over("Aida", NONE), over("Norma", "Vincenzo Bellini")]
    events = await events_of(script, HITS, QUESTION, **ASKED)
    assert [event.text for event in events if isinstance(event, Token)] == ["Vincenzo Bellini"]
    judged = [event for event in events if isinstance(event, Judgement)]
    assert [(each.passage_id, each.relevant, each.kept) for each in judged] == [
        ("aida", False, False), ("norma", True, True), ("tosca", None, False),
    ]  # fmt: skip
    body = next(event.body for event in events if event.event == "answer")  # type: ignore[attr-defined]
    assert (body.answer, body.steps[-1].flags) == ("Vincenzo Bellini", [])
    assert (body.usage.llm_calls, body.usage.retrievals) == (2, 1)
    assert [citation.passage_id for citation in body.citations] == ["norma"]


@pytest.mark.parametrize(
    ("loop", "flag"), [("one_retrieval", "declined"), ("anrag", "no_evidence")]
)
async def test_declined_over_every_passage(loop: str, flag: str) -> None:
    script = [over(title, NONE) for title in TITLES]
    body = await ask(*script, loop=loop, max_steps=1)
    assert (body.answered, body.steps[-1].flags) == (False, [flag])
    assert all(not each.kept for each in body.steps[-1].passages)


async def test_without_evidence_the_settings_decide() -> None:
    """Where its reading says that no passage is relevant, as where a judge says so."""
    settings = Settings.model_validate({"answers": {"no_evidence": "closed_book"}})
    memory = ScriptStep("Bellini", lambda request: "Doc1" not in request.messages[0].content)
    script = [*(over(title, NONE) for title in TITLES), memory]
    body = await ask(*script, loop="anrag", max_steps=1, settings=settings)
    assert (body.answer, set(body.steps[-1].flags) >= {"closed_book"}) == ("Bellini", True)


async def test_the_pieces_of_a_document_are_read_as_one_passage() -> None:
    hits = {"": [
        passage("elliot#2", "It is a film. Burgess wrote the novel.", "Billy Elliot"),
        passage("aida", "Aida is an opera by Giuseppe Verdi.", "Aida"),
        passage("elliot#1", "Lee Hall wrote it. It is a film.", "Billy Elliot"),
    ]}  # fmt: skip
    line = 'Doc1: "Billy Elliot: Lee Hall wrote it. It is a film. Burgess wrote the novel."'
    whole = ScriptStep("Lee Hall", line)
    body = await body_of([whole], hits, "Who wrote the film Billy Elliot?", **ASKED)
    assert (body.answer, body.usage.llm_calls) == ("Lee Hall", 1)
    kept = [each.passage_id for each in body.steps[-1].passages if each.kept]
    assert kept == ["elliot#2", "elliot#1"]


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ({2: "B is. C is.", 1: "A is. B is."}, "A is. B is. C is."),
        ({1: "A is.", 2: "B is."}, "A is. B is."),
        ({3: "C is.", 1: "A is."}, "A is. C is."),
        ({10: "K is.", 9: "J is. K is.", 2: ""}, "J is. K is."),
    ],
)
def test_the_pieces_of_a_document_in_its_order(texts: dict[int, str], whole: str) -> None:
    pieces = [passage(f"handbook#{number}", text, "Handbook") for number, text in texts.items()]
    assert joined(pieces) == PassageText("Handbook", whole)


def test_the_sections_of_a_page_are_documents() -> None:
    """Only a number says that a passage is a piece."""
    names = ("page.html#pay#2", "page.html#leave", "page.html#pay#1", "page.html")
    groups = by_document([passage(name, "Text.") for name in names])
    assert [[each.passage_id for each in group] for group in groups] == [
        ["page.html#pay#2", "page.html#pay#1"], ["page.html#leave"], ["page.html"],
    ]  # fmt: skip


async def test_it_reads_no_more_than_top_k() -> None:
    body = await ask(over("Aida", NONE), over("Norma", NONE), top_k=2)
    assert (body.answered, body.usage.llm_calls) == (False, 2)


async def test_what_cannot_be_read_is_asked_again_over_its_passage() -> None:
    first = [over("Aida", NONE), over("Norma", ""), over("Tosca", NONE)]
    body = await ask(*first, over("Norma", "Bellini"))
    assert (body.answer, body.usage.llm_calls) == ("Bellini", 4)
    assert [each.passage_id for each in body.steps[-1].passages if each.kept] == ["norma"]


async def test_an_answer_that_was_cut_is_flagged() -> None:
    body = await ask(over("Aida", "Giuseppe Verdi of", finish="length"))
    assert (body.answer, body.steps[-1].flags) == ("Giuseppe Verdi of", ["shortened"])


async def test_at_a_limit_what_was_not_read_is_said() -> None:
    body = await ask(over("Aida", NONE), limits=Limits(max_llm_calls=1))
    assert (body.answered, body.stopped_by) == (False, "budget")
    assert [each.reason for each in body.steps[-1].passages][1:] == ["not read", "not read"]


async def test_out_of_time_a_chain_is_answered_from_what_it_had_not_read() -> None:
    script = [
        ScriptStep("no", "Task: ending"),
        ScriptStep("Who is the composer?", "Task: refine"),
        over("Aida", "too late", delay=5),
        ScriptStep("Vincenzo Bellini", ["Task: answer", QUESTION, "Norma:"]),
    ]
    slow = Limits(timeout_s=0.5)
    body = await ask(*script, route="complex", loop="default", limits=slow)
    assert (body.answer, body.answered, body.stopped_by) == ("Vincenzo Bellini", True, "deadline")
    assert [each.kept for each in body.steps[1].passages] == [True, True, True]


@pytest.mark.parametrize("by", [None, "model"])
async def test_a_judge_that_the_settings_name_judges(by: str | None) -> None:
    settings = Settings.model_validate({"hanrag": {"relevance_by": by}})
    verdicts = [
        ScriptStep("true", ["Task: relevance", "Norma:"]),
        ScriptStep("false", "Task: relevance", times=2),
    ]
    script = [over("Aida", NONE), over("Norma", "Bellini")]
    named = [*verdicts, over("Norma", "Bellini")]
    body = await ask(*(named if by else script), loop="anrag", settings=settings)
    assert body.answer == "Bellini"


async def test_a_reader_that_is_not_distracted_reads_all_at_once() -> None:
    together = ScriptStep("Bellini", ["Task: answer", "Aida:", "Norma:", "Tosca:"])
    body = await ask(together, capabilities=replace(IN_TURN, one_at_a_time=False))
    assert (body.answer, body.usage.llm_calls) == ("Bellini", 1)


async def test_the_samples_vote_over_the_passage_that_answered() -> None:
    drawn = [over("Norma", "Vincenzo Bellini"), over("Norma", "Vincenzo Bellini")]
    body = await ask(over("Aida", NONE), over("Norma", "an opera"), *drawn, samples=3)
    assert (body.answer, body.steps[-1].flags) == ("Vincenzo Bellini", ["outvoted"])


async def test_the_probability_of_its_answer_decides_on_another_route() -> None:
    script = [over("Aida", NONE, -9.0), over("Norma", "Bellini", -0.01)]
    settings = Settings.model_validate({"escalation": {"when": "always", "below": 0.5}})
    body = await ask(*script, loop="anrag", settings=settings)
    assert (body.answer, body.route) == ("Bellini", "single")


async def test_the_number_of_something_else_is_corrected() -> None:
    hits = {"": [passage("leave", "There are 27 days of leave and four months of trial.", "Leave")]}
    question = "How many days of leave are there?"
    answer = await body_of([over("Leave", "four")], hits, question, **ASKED)
    assert answer.answer == "27"
    assert "computed" in answer.steps[-1].flags
    right = await body_of([over("Leave", "27 days")], hits, question, **ASKED)
    assert right.answer == "27 days"
    assert "computed" not in right.steps[-1].flags
