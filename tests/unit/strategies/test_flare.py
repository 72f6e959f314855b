"""FLARE: its decisions by hand, and its calls and events step by step (METHODS.md §7.6)."""

from __future__ import annotations

import math
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
    Trigger,
    Withdraw,
)
from service.core.domain import Passage
from service.core.errors import EngineFailure
from service.core.settings import Settings
from service.engines.base import Delta, GenerationRequest
from service.strategies.flare import (
    Flare,
    find_doubtful_spans,
)
from tests.stubs.token_engine import Output, TokenEngine, of_words
from tests.support.asking import ScriptedRetriever, inquiry, loop_events, of, passage

QUESTION = "In which city was the composer of the opera Norma born?"
HITS: dict[str, Sequence[Passage] | Exception] = {
    "composer of": [passage("norma", "Norma is an opera by Vincenzo Bellini.")],
    "Bellini": [passage("bellini", "Vincenzo Bellini was born in Catania.")],
}
FIRST = "Norma was composed by Vincenzo Bellini."
DOUBTFUL = "Vincenzo Bellini was born in Palermo."
SURE = "Vincenzo Bellini was born in Catania."
LAST = "So the answer is Catania."


def pieces(*tokens: tuple[str, float]) -> list[Delta]:
    return [Delta(text, math.log(probability)) for text, probability in tokens]


def test_a_span_is_whole_words_and_never_a_mark_alone() -> None:
    tokens = pieces((" Vincenzo", 0.9), (" Bell", 0.9), ("ini", 0.1), (" sang", 0.9), (" –", 0.1))
    assert find_doubtful_spans(tokens, 0.4) == ["Bellini sang –"]
    assert find_doubtful_spans(tokens[:4], 0.4) == ["Bellini"]
    assert find_doubtful_spans(tokens[3:], 0.4) == []


def model(outputs: Mapping[str, Output]) -> Any:
    """Writes by what the text so far ends with; behind a `*` with Catania's passage in view."""

    def write(request: GenerationRequest) -> Output:
        prompt = request.prompt or ""
        written = prompt.rpartition("\nAnswer:")[2].strip()
        seen = "*" if "[1] Vincenzo Bellini was born in Catania." in prompt else ""
        return outputs.get(seen + written) or outputs[written]

    return write


WORKED = {
    "": of_words(f"{FIRST} He sang."),
    FIRST: of_words(f"{DOUBTFUL} {LAST}", {"Palermo.": 0.3, "born": 0.7}),
    f"*{FIRST}": of_words(f"{SURE} {LAST}"),
    f"{FIRST} {SURE}": of_words(LAST),
}


async def run(
    outputs: Mapping[str, Output] = WORKED,
    hits: Mapping[str, Sequence[Passage] | Exception] = HITS,
    chat: Any = None,
    write: Any = None,
    **options: Any,
) -> tuple[TokenEngine, list[BaseEvent]]:
    engine = TokenEngine(write or model(outputs), chat)
    options.setdefault("prompts", "full")
    asked = inquiry(engine, ScriptedRetriever(hits), QUESTION, loop="flare", **options)
    return engine, [event async for event in loop_events(Flare, asked, QUESTION)]


def baselines(**values: Any) -> Settings:
    return Settings.model_validate({"baselines": values})


async def test_the_worked_example() -> None:
    engine, events = await run()
    assert [(e.step, e.kind) for e in of(events, StepStart)] == [
        ("1", "retrieve"), ("2", "answer"), ("3", "answer"), ("4", "retrieve"), ("5", "answer"),
    ]  # fmt: skip
    assert [e.query for e in of(events, QueryIssued)] == [
        QUESTION, "Vincenzo Bellini was born in",
    ]  # fmt: skip
    (trigger,) = of(events, Trigger)
    assert (trigger.token, trigger.threshold, trigger.entropy) == ("Palermo.", 0.8, None)
    assert trigger.score == pytest.approx(0.3)
    assert "words" not in trigger.model_dump()
    assert [(e.step, e.reason) for e in of(events, Withdraw)] == [("3", "trigger")]
    assert [e.text for e in of(events, ThoughtWritten)] == [FIRST, LAST]
    assert [e.answer for e in of(events, StepEnd)] == [None, None, None, SURE, "Catania"]
    found = of(events, PassagesFound)
    assert [[p.passage_id for p in e.passages if p.kept] for e in found] == [["norma"], ["bellini"]]
    assert [e.text for e in of(events, Token) if e.role == "answer"] == ["Catania"]
    assert events[-1] == Stop(stopped_by="answer", answered=True)
    assert engine.aborted == 3  # each call but the last ends with its sentence


async def test_a_sentence_of_which_nothing_is_left_is_not_searched_for() -> None:
    outputs = {
        "": of_words("Palermo sings.", {"Palermo": 0.3, "sings.": 0.3}),
        "Palermo sings. So the answer is": of_words("Palermo."),
    }
    _, events = await run(outputs)
    assert [e.query for e in of(events, QueryIssued)] == [QUESTION]
    assert of(events, ThoughtWritten)[0].text == "Palermo sings."


async def test_a_reply_that_is_no_question_is_not_searched_for() -> None:
    outputs = {**WORKED, f"{FIRST} {DOUBTFUL}": of_words(LAST)}
    settings = baselines(flare_query="questions")
    _, events = await run(outputs, chat=lambda _: "Palermo.", settings=settings)
    assert len(of(events, QueryIssued)) == 1
    assert [e.text for e in of(events, ThoughtWritten)] == [FIRST, DOUBTFUL, LAST]


async def test_without_a_retrieval_left_doubtful_sentences_stand() -> None:
    outputs = {**WORKED, f"{FIRST} {DOUBTFUL}": of_words(LAST)}
    _, events = await run(outputs, max_steps=1)
    assert len(of(events, QueryIssued)) == 1
    assert events[-1] == Stop(stopped_by="max_steps", answered=True)


async def test_where_nothing_is_found_the_draft_stands() -> None:
    outputs = {**WORKED, f"{FIRST} {DOUBTFUL}": of_words(LAST)}
    _, events = await run(outputs, {"composer of": HITS["composer of"]})
    ends = of(events, StepEnd)
    assert (ends[3].answer, ends[3].flags) == (DOUBTFUL, ["no_evidence"])


async def test_an_engine_that_leaves_a_probability_out_fails() -> None:
    engine = TokenEngine(model(WORKED), logprobs=False)
    asked = inquiry(engine, ScriptedRetriever(HITS), QUESTION, prompts="full")
    with pytest.raises(EngineFailure, match="no probability"):
        [event async for event in loop_events(Flare, asked, QUESTION)]
