"""Replies that decline, that are examples of their prompts, or that are cut."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.answer.fold import collect
from service.answer.request import LONGEST_QUESTION
from service.core.domain import Answer, Passage
from service.core.settings import Settings
from service.core.settings.loops import AutoragSettings
from service.engines.base import Capabilities
from service.strategies.planner import JSON_TOKENS, decompose
from service.strategies.reading.questions import parse_decomposition
from tests.stubs.signal_engine import SignalEngine, spans_in
from tests.support.asking import (
    ScriptedRetriever,
    answer_stream,
    body_in,
    body_of,
    events_of,
    inquiry,
    passage,
    standing,
)
from tests.support.opera import (
    BELLINI,
    NOISE,
    NORMA,
    QUESTION,
    flags,
    relevant,
    say,
)
from tests.support.scripted import ScriptedGenerator, ScriptStep, render

HITS: Mapping[str, Sequence[Passage]] = {"": [NORMA]}
REFUSALS = ["no answer found", "The documents do not mention where he was born.", "Unknown"]


RELEVANT = ScriptStep("true", match="Task: relevance", times=None)


async def ask(script: list[ScriptStep], **options: Any) -> Answer:
    return await body_of(script, HITS, QUESTION, **options)


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_single(refusal: str) -> None:
    script = [RELEVANT, say("Task: answer", refusal)]
    events = await events_of(script, HITS, QUESTION, route="single")
    body = body_in(events)
    assert not body.answered
    assert body.citations == []
    assert body.steps[0].answer is None
    assert flags(body) == {"declined"}
    assert body.usage.llm_calls == 2  # declining is a reply: it is not asked for again
    assert standing(events) == body.answer == "No answer was found in the passages."


async def test_a_merge_that_lacks_a_part_is_an_answer_and_one_that_lacks_all_is_none() -> None:
    parts = '{"thought": "two", "decomposition": ["Who composed Norma?", "Who sang Norma?"]}'
    found = [
        say("Task: decompose", parts),
        RELEVANT,
        say(["Task: answer", "composed"], "Vincenzo Bellini"),
        say(["Task: answer", "sang"], "N/A"),
    ]
    told = "Vincenzo Bellini composed Norma. The documents do not mention who sang it."
    body = await ask([*found, say("Task: merge", told)], route="compound")
    assert (body.answered, body.answer) == (True, told)
    body = await ask([*found, say("Task: merge", "no answer found")], route="compound")
    assert not body.answered


ALOUD = "Let me think: the answer would be Bellini."


async def test_what_a_reply_ends_in_is_the_answer_if_a_passage_has_it() -> None:
    script = [RELEVANT, say("Task: answer", ALOUD)]
    body = await body_of(script, {"": [NORMA]}, QUESTION, route="single")
    assert (body.answer, body.steps[-1].flags) == ("Bellini", ["repaired"])
    assert [citation.passage_id for citation in body.citations] == ["norma"]


@pytest.mark.parametrize("end", ["Verdi", "Norma", "an opera " * 5])
async def test_a_reply_that_is_not_used_is_told(end: str) -> None:
    """No passage has it, the question has it, or it is no short answer."""
    script = [RELEVANT, *[say("Task: answer", ALOUD.replace("Bellini", end))] * 2]
    body = await body_of(script, {"": [NORMA]}, QUESTION, route="single")
    assert (body.answered, body.steps[-1].flags) == (False, ["unread_answer"])


# ---- a reply that is an example of its prompt is asked for once more and then counts as none

OF_CATANIA = {"": [passage("norma", "Norma is an opera by Vincenzo Bellini of Catania.", "Norma")]}
RELEVANT_IN_FULL = ScriptStep("true", match="Judge whether", times=None)
ANSWER = "Where the documents do not hold"


async def ask_in_full(script: Sequence[ScriptStep], **options: Any) -> Answer:
    return await body_of(list(script), OF_CATANIA, QUESTION, prompts="full", **options)


async def test_the_second_reply_counts_and_is_hotter() -> None:
    hot = ScriptStep("Catania", match=lambda request: request.temperature > 0)
    script = [RELEVANT_IN_FULL, ScriptStep("Meridian Spire", match=ANSWER), hot]
    events = await events_of(script, OF_CATANIA, QUESTION, prompts="full", route="single")
    body = body_in(events)
    assert (body.answered, body.answer) == (True, "Catania")
    assert "prompt_example" not in body.steps[0].flags
    assert [event.event for event in events].count("withdraw") == 1  # type: ignore[attr-defined]


async def test_what_the_passages_say_too_is_an_answer() -> None:
    hits = {"": [passage("spire", "Norma is played in the Meridian Spire.", "Norma")]}
    script = [RELEVANT_IN_FULL, ScriptStep("Meridian Spire", match=ANSWER)]
    body = await body_of(script, hits, QUESTION, prompts="full", route="single")
    assert body.answered


async def test_a_sub_question_out_of_the_examples_is_asked_for_again() -> None:
    example = "Who was the architect of the Corvale Opera House?"
    script = [
        ScriptStep("no", match="Decide whether the search can end"),
        ScriptStep(example, match="Write the question to search for next", times=2),
        RELEVANT_IN_FULL,
        ScriptStep("Catania", match=ANSWER),
        ScriptStep("yes", match="Decide whether the search can end"),
        ScriptStep("Catania", match="worked out in steps"),
    ]
    body = await ask_in_full(script, route="complex")
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
        RELEVANT_IN_FULL,
        ScriptStep("Catania", match=ANSWER),
    ]
    body = await ask_in_full(script, route="compound")
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
            engine, ScriptedRetriever(OF_CATANIA), QUESTION, prompts="full", loop="autorag",
            route="single", settings=Settings.model_validate({"autorag": {"mode": "few_shot"}}),
        )  # fmt: skip
        body = await collect(answer_stream(asked))
    assert isinstance(body, Answer)
    assert [step.query for step in body.steps if step.query] == ["composer of Norma"]
    assert body.answer == "Catania"


# ---- what was cut is never passed off as whole

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


async def test_a_decomposition_that_stays_cut_is_none() -> None:
    found, flagged, _ = await parts(cut(None, CUT), cut(None, CUT))
    assert (found.questions, flagged) == (("both?",), ["repaired"])


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (PARTS, False),
        (f"Sure!\n```json\n{PARTS}\n```", False),
        ('["One?", "Two?"]', False),
        ("1. One?\n2. Two?", False),
        ("Who? I take it apart:\n1. One?\n2. Two?", False),
        ("One?\nTwo?", False),
        ("Take:\n1. One?\n- Two?", False),
        (PARTS.replace('"', "'"), False),
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
