"""Retrieval at every window, of n tokens or of a sentence (METHODS.md §7.4, §7.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    QueryIssued,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
)
from service.core.domain import Passage
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


def writes(request: GenerationRequest) -> Output:
    """Goes on with the text from wherever the prompt stands in it, a token a word."""
    written = (request.prompt or "").rpartition("\nAnswer:")[2].split()
    return of_words(" ".join(TEXT.split()[len(written) :]))


async def run(
    loop: type[Method], write: Any = writes, window: int = 6, **request: Any
) -> tuple[TokenEngine, list[BaseEvent]]:
    engine = TokenEngine(write)
    asked = inquiry(
        engine, ScriptedRetriever(HITS), QUESTION, prompts="full", loop=loop.name, **request
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "WINDOW", window)
        return engine, [event async for event in loop_events(loop, asked, QUESTION)]


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
