"""IRCoT: its decisions step by step, and whole questions over scripted engines."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.fold import collect
from service.core.domain import Answer, RetrieverName
from service.core.settings import Settings
from service.engines.base import Capabilities
from service.strategies.chains import (
    next_query,
    next_sentence,
)
from service.strategies.pipeline import answer_stream
from service.strategies.registry import LOOPS
from tests.support.asking import ScriptedRetriever, body_of, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio
NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was born in Catania in 1801.", "Bellini")
HITS = {"Where was": [NORMA], "Vincenzo Bellini": [BELLINI, NORMA]}
QUESTION = "Where was the composer of Norma born?"
FACT = "Norma was composed by Vincenzo Bellini."
ASKED: dict[str, Any] = {"loop": "ircot", "route": "single"}


def thinks(written: str, reply: str) -> ScriptStep:
    """The next sentence, where the prompt ends in the text so far."""
    return ScriptStep(reply, lambda request: (request.prompt or "").endswith(f"Answer:{written}"))


def reads(reply: str) -> ScriptStep:
    return ScriptStep(reply, "Task: answer")


CHAIN = [
    thinks("", f" {FACT} Vincenzo Bellini was born in Rome. So the answer is Rome."),
    thinks(f" {FACT}", " Vincenzo Bellini was born in Catania."),
    thinks(f" {FACT} Vincenzo Bellini was born in Catania.", "So the answer is: Catania."),
]


@pytest.mark.parametrize(
    ("written", "retriever", "query"),
    [
        ([], "hybrid", "Where is Norma set?"),
        ([], "bm25", "Norma set?"),
        (["Norma is set in Gaul."], "dense", "Norma is set in Gaul."),
        (["Norma is set in Gaul."], "bm25", "Norma set in Gaul."),
        (["Norma is old.", "Thus, it is dull."], "hybrid", "Norma is old."),
        (["So it is.", "Hence no."], "hybrid", "Where is Norma set?"),
    ],
)
def test_the_query_is_the_newest_fact_or_the_question(
    written: list[str], retriever: RetrieverName, query: str
) -> None:
    assert next_query(" Where is Norma set? ", written, retriever) == query


def test_the_first_sentence_that_is_new() -> None:
    assert next_sentence(" One. Two. Three.", []) == "One."
    assert next_sentence("One. Two. Three.", ["One."]) == "Two."
    assert next_sentence("One.", ["One."]) == ""
    assert next_sentence(" \n", []) == ""


async def test_thought_and_retrieval_take_turns_and_a_reader_answers() -> None:
    body = await body_of([*CHAIN, reads("Catania")], HITS, QUESTION, **ASKED)
    assert (body.answer, body.answered, body.stopped_by) == ("Catania", True, "answer")
    assert [(step.kind, step.query, step.answer) for step in body.steps] == [
        ("retrieve", QUESTION, FACT),
        ("retrieve", FACT, "Vincenzo Bellini was born in Catania."),
        ("retrieve", "Vincenzo Bellini was born in Catania.", "So the answer is: Catania."),
        ("answer", None, "Catania"),
    ]
    assert (body.usage.llm_calls, body.usage.retrievals) == (4, 3)
    assert [c.passage_id for c in body.citations] == ["norma", "bellini"]
    assert [step.flags for step in body.steps] == [[], [], ["no_new_evidence"], []]


async def test_the_limit_of_steps_ends_the_chain_not_the_question() -> None:
    body = await body_of([*CHAIN[:2], reads("Catania")], HITS, QUESTION, max_steps=2, **ASKED)
    assert (body.answer, body.stopped_by, body.usage.steps) == ("Catania", "max_steps", 2)


async def test_a_sentence_out_of_the_demonstrations_ends_the_chain() -> None:
    copied = "The Glass Orchard was directed by Paul Renner."
    body = await body_of([thinks("", copied), reads("Catania")], HITS, QUESTION, **ASKED)
    assert body.steps[0].flags == ["prompt_example"]
    assert body.steps[0].answer is None
    assert body.usage.retrievals == 1


async def test_two_passages_of_one_text_are_one() -> None:
    twin = passage("twin", NORMA.text, NORMA.title)
    hits = {"": [NORMA, twin]}
    body = await body_of(
        [thinks("", "So the answer is: no."), reads("Bellini")], hits, "Who made it?", **ASKED
    )
    assert [p.reason for p in body.steps[0].passages] == ["collected", "collected before"]


async def test_nothing_found_abstains_or_is_answered_from_memory() -> None:
    script = [thinks("", "So the answer is no answer found.")]
    body = await body_of(script, {}, QUESTION, **ASKED)
    assert not body.answered
    assert body.steps[0].flags == ["no_evidence"]
    own = Settings.model_validate({"answers": {"no_evidence": "closed_book"}})
    closed = [*script, ScriptStep("Catania", "Task: closed")]
    body = await body_of(closed, {}, QUESTION, settings=own, **ASKED)
    assert (body.answer, body.steps[-1].flags) == ("Catania", ["closed_book"])


async def test_out_of_calls_what_was_collected_is_read() -> None:
    limits = {"max_llm_calls": 2}
    body = await body_of([CHAIN[0], reads("Catania")], HITS, QUESTION, limits=limits, **ASKED)
    assert (body.answer, body.stopped_by, body.usage.llm_calls) == ("Catania", "budget", 2)


async def test_a_small_model_is_shown_what_it_has_room_for() -> None:
    able = Capabilities(context_tokens=600, passages=1, templates="compact")
    engine = ScriptedGenerator([*CHAIN, reads("Catania")], capabilities=able)
    body = await collect(answer_stream(inquiry(engine, ScriptedRetriever(HITS), QUESTION, **ASKED)))
    assert isinstance(body, Answer)
    assert "Bellini: Vincenzo" in (engine.requests[1].prompt or "")
    assert "[2]" not in (engine.requests[1].prompt or "")
    kept = {p.passage_id for step in body.steps for p in step.passages if p.kept}
    assert kept == {"norma"}
    assert body.steps[-1].flags == ["unsupported"]


def test_a_template_set_without_demonstrations_is_refused(tmp_path: Any) -> None:
    (tmp_path / "answer.txt").write_text("$question ${passages}", encoding="utf-8")
    engine = ScriptedGenerator()
    asked = inquiry(engine, ScriptedRetriever({}), QUESTION, prompts=str(tmp_path))
    for name in ("ircot", "iter_retgen"):
        loop: Any = LOOPS[name]
        assert "dragin_demonstrations.txt" in loop.missing(asked.roles, asked.settings)
