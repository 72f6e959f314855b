"""Methods that reason in text: IRCoT, ITER-RETGEN and Self-Ask over scripted engines."""

from __future__ import annotations

from typing import Any

from service.answer.fold import collect
from service.core.domain import Answer
from service.engines.base import Capabilities
from tests.support.asking import ScriptedRetriever, answer_stream, body_of, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was born in Catania in 1801.", "Bellini")
HITS = {"Where was": [NORMA], "Vincenzo Bellini": [BELLINI, NORMA]}
QUESTION = "Where was the composer of Norma born?"
FACT = "Norma was composed by Vincenzo Bellini."
IRCOT: dict[str, Any] = {"loop": "ircot", "route": "single"}


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


async def test_a_sentence_out_of_the_demonstrations_ends_the_chain() -> None:
    copied = "The Glass Orchard was directed by Paul Renner."
    body = await body_of([thinks("", copied), reads("Catania")], HITS, QUESTION, **IRCOT)
    assert body.steps[0].flags == ["prompt_example"]
    assert body.steps[0].answer is None
    assert body.usage.retrievals == 1


async def test_two_passages_of_one_text_are_one() -> None:
    twin = passage("twin", NORMA.text, NORMA.title)
    hits = {"": [NORMA, twin]}
    body = await body_of(
        [thinks("", "So the answer is: no."), reads("Bellini")], hits, "Who made it?", **IRCOT
    )
    assert [p.reason for p in body.steps[0].passages] == ["collected", "collected before"]


async def test_a_small_model_is_shown_what_it_has_room_for() -> None:
    able = Capabilities(context_tokens=600, passages=1, templates="compact")
    engine = ScriptedGenerator([*CHAIN, reads("Catania")], capabilities=able)
    body = await collect(answer_stream(inquiry(engine, ScriptedRetriever(HITS), QUESTION, **IRCOT)))
    assert isinstance(body, Answer)
    assert "Bellini: Vincenzo" in (engine.requests[1].prompt or "")
    assert "[2]" not in (engine.requests[1].prompt or "")
    kept = {p.passage_id for step in body.steps for p in step.passages if p.kept}
    assert kept == {"norma"}
    assert body.steps[-1].flags == ["unsupported"]


# ---- ITER-RETGEN

BY_GENERATION = {"Vincenzo Bellini": [BELLINI], "Where was": [NORMA]}
FIRST = "Norma was composed by Vincenzo Bellini. So the answer is Rome."
ITER_RETGEN: dict[str, Any] = {"loop": "iter_retgen", "route": "single"}


def writes(context: str, reply: str) -> ScriptStep:
    """A generation from the passages of one retrieval alone."""
    return ScriptStep(reply, lambda request: f"Context:\n[1] {context}" in (request.prompt or ""))


async def test_the_same_generation_again_ends_early() -> None:
    script = [writes("Norma: ", FIRST), writes("Bellini: ", FIRST)]
    body = await body_of(script, BY_GENERATION, QUESTION, max_steps=9, **ITER_RETGEN)
    assert (body.answer, body.usage.retrievals, body.usage.llm_calls) == ("Rome", 2, 2)
    assert [step.kind for step in body.steps] == ["retrieve", "retrieve", "answer"]


async def test_a_generation_that_concludes_nothing_leaves_its_passages_to_a_reader() -> None:
    script = [
        writes("Norma: ", "Norma was composed by Vincenzo Bellini."),
        ScriptStep("Catania", "Task: answer"),
    ]
    body = await body_of(script, {"": [NORMA]}, QUESTION, max_steps=1, **ITER_RETGEN)
    assert (body.answer, [step.kind for step in body.steps]) == ("Catania", ["retrieve", "answer"])


async def test_a_copied_generation_is_neither_answer_nor_query() -> None:
    copied = "The Glass Orchard was directed by Paul Renner. So the answer is Paul Renner."
    script = [writes("Norma: ", copied), ScriptStep("Catania", "Task: answer")]
    body = await body_of(script, BY_GENERATION, QUESTION, **ITER_RETGEN)
    assert body.answer == "Catania"
    assert body.steps[0].flags == ["prompt_example"]
    assert body.usage.retrievals == 1


# ---- Self-Ask

BY_QUESTION = {"Who composed": [NORMA], "Where was Vincenzo": [BELLINI]}
ONE, TWO = "Who composed Norma?", "Where was Vincenzo Bellini born?"
SELF_ASK: dict[str, Any] = {"loop": "self_ask", "route": "single"}
FULL: dict[str, Any] = {**SELF_ASK, "prompts": "full"}
NEEDED = "Are follow up questions needed here:"
ONCE = f" Yes.\nFollow up: {ONE}\nIntermediate answer: Vincenzo Bellini."


def turn(history: str, reply: str) -> ScriptStep:
    def ends(request: Any) -> bool:
        return request.messages[-1].content.endswith(f"Question: {QUESTION}\n{NEEDED}{history}")

    return ScriptStep(reply, ends)


def finds(question: str, reply: str) -> ScriptStep:
    return ScriptStep(reply, f"\nQuestion: {question}\nDoc1")


async def test_a_question_asked_before_is_not_searched_again() -> None:
    script = [
        turn("", f" Yes.\nFollow up: {ONE}"),
        finds(ONE, "Vincenzo Bellini"),
        turn(ONCE, "Follow up: who composed Norma"),
        turn(f"{ONCE}\nSo the final answer is:", "Vincenzo Bellini"),
    ]
    body = await body_of(script, BY_QUESTION, QUESTION, **FULL)
    assert (body.usage.retrievals, body.steps[-1].flags) == (1, ["refine_loop"])


async def test_an_answer_from_memory_is_flagged() -> None:
    script = [turn("", " No.\nSo the final answer is: Catania")]
    body = await body_of(script, BY_QUESTION, QUESTION, **FULL)
    assert (body.answer, body.usage.retrievals, body.citations) == ("Catania", 0, [])
    assert body.steps[0].flags == ["closed_book"]


async def test_an_example_is_neither_asked_nor_an_answer() -> None:
    copied = "Follow up: Who founded Brannick?"
    script = [
        turn("", copied),
        turn("", f"Follow up: {ONE}"),
        finds(ONE, "Vincenzo Bellini"),
    ]
    script += [
        turn(ONCE, "So the final answer is: Estonia"),
        turn(f"{ONCE}\nSo the final answer is:", "Vincenzo Bellini"),
    ]
    body = await body_of(script, BY_QUESTION, QUESTION, **FULL)
    assert body.answer == "Vincenzo Bellini"
    assert all("Brannick" not in (step.query or "") for step in body.steps)


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
    body = await body_of(script, BY_QUESTION, QUESTION, **SELF_ASK)
    assert (body.answer, body.usage.retrievals, body.usage.llm_calls) == ("Catania", 2, 7)
    assert [c.passage_id for c in body.citations] == ["norma", "bellini"]
