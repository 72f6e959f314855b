"""Retrieval at every window, of n tokens or of a sentence (METHODS.md §7.4, §7.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    QueryIssued,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
    Token,
)
from service.core.domain import Passage
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.strategies import drafting
from service.strategies.base import Method
from service.strategies.drafting import FixedLength, FixedSentence
from tests.stubs.token_engine import Output, TokenEngine, of_words
from tests.support.asking import ScriptedRetriever, inquiry, loop_events, of, passage

QUESTION = "Where was the composer of Norma born?"
TEXT = "Norma is by Vincenzo Bellini. He was born in Catania. So the answer is Catania."
HITS: dict[str, Sequence[Passage] | Exception] = {
    "composer": [passage("norma", "Norma is an opera by Vincenzo Bellini.")],
    "": [passage("bellini", "Vincenzo Bellini was born in Catania.")],
}


def writes(text: str) -> Any:
    """Goes on with `text` from wherever the prompt stands in it, a token a word."""

    def write(request: GenerationRequest) -> Output:
        written = (request.prompt or "").rpartition("\nAnswer:")[2].split()
        words = text.split()
        if words[: len(written)] != written:  # the conclusion
            return of_words("Catania.")
        return of_words(" ".join(words[len(written) :]))

    return write


async def run(
    loop: type[Method],
    text: str = TEXT,
    hits: Mapping[str, Sequence[Passage] | Exception] = HITS,
    write: Any = None,
    window: int = 6,
    tokens: int = 128,
    **request: Any,
) -> tuple[TokenEngine, list[BaseEvent]]:
    engine = TokenEngine(write or writes(text))
    settings = {"dragin": {"max_tokens": tokens}}
    asked = inquiry(
        engine,
        ScriptedRetriever(hits),
        QUESTION,
        settings=Settings.model_validate(settings),
        prompts="full",
        loop=loop.name,
        **request,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "WINDOW", window)
        return engine, [event async for event in loop_events(loop, asked, QUESTION)]


def windows(events: list[BaseEvent]) -> list[tuple[str, str | None]]:
    """Each query, with the window that was written from what it found."""
    answers = {event.step: event.answer for event in of(events, StepEnd)}
    return [(event.query, answers[event.step]) for event in of(events, QueryIssued)]


async def test_the_worked_example_of_fixed_length() -> None:
    engine, events = await run(FixedLength)
    assert windows(events) == [
        (QUESTION, "Norma is by Vincenzo Bellini. He"),
        ("Norma is by Vincenzo Bellini. He", "was born in Catania. So the"),
        ("was born in Catania. So the", "answer is Catania."),
    ]  # fmt: skip
    assert [event.kind for event in of(events, StepStart)] == ["retrieve"] * 3 + ["answer"]
    assert [request.max_tokens for request in engine.requests] == [6, 6, 6]
    assert engine.prompts[1].endswith("\nAnswer: Norma is by Vincenzo Bellini. He")
    assert "[1] Vincenzo Bellini was born in Catania." in engine.prompts[1]
    assert "[1] Norma" not in engine.prompts[1]
    assert [e.text for e in of(events, Token) if e.role == "answer"] == ["Catania"]
    assert events[-1] == Stop(stopped_by="answer", answered=True)


async def test_a_word_that_a_window_cut_is_whole_in_the_text() -> None:
    def write(request: GenerationRequest) -> Output:
        written = (request.prompt or "").rpartition("\nAnswer:")[2]
        tokens = [" So", " the", " answer", " is", " Cat", "ania", "."]
        done = 0
        while len("".join(tokens[:done])) < len(written):
            done += 1
        return Output([(token, 1.0) for token in tokens[done:]])

    _, events = await run(FixedLength, write=write, window=5)
    assert of(events, StepEnd)[-1].answer == "Catania"


@pytest.mark.parametrize("loop", [FixedLength, FixedSentence])
async def test_without_a_retrieval_left_the_rest_is_written(loop: type[Method]) -> None:
    engine, events = await run(loop, max_steps=1)
    assert len(of(events, QueryIssued)) == 1
    assert [event.kind for event in of(events, StepStart)] == ["retrieve", "answer"]
    (rest,) = of(events, ThoughtWritten)
    assert rest.text.endswith("So the answer is Catania.")
    assert "[1] Norma is an opera" in engine.prompts[-1]
    assert of(events, StepEnd)[-1].answer == "Catania"
    assert events[-1] == Stop(stopped_by="max_steps", answered=True)
