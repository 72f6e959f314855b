"""A call whose worker was lost in mid-output is begun again, and what it had shown is withdrawn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from service.answer.calls import RESTARTS
from service.answer.events import BaseEvent, Token, Withdraw
from service.answer.inquiry import OpenStep, Scope
from service.core.errors import EngineInterrupted
from service.engines.base import (
    Capabilities,
    Delta,
    GenerationRequest,
    Generator,
    Message,
    TokenUsage,
)
from tests.support.asking import ScriptedRetriever, inquiry

REQUEST = GenerationRequest(messages=(Message("user", "Where?"),))


@dataclass
class Lossy(Generator):
    """Answers "It is Paris", but is lost after `after` words in its first `losses` calls."""

    losses: int
    after: int = 2
    name: str = "lossy"
    capabilities = Capabilities()
    calls: list[tuple[str, int]] = field(default_factory=list)  # question and turn

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        self.calls.append((request.question, request.turn))
        for number, word in enumerate(("It", " is", " Paris")):
            if len(self.calls) <= self.losses and number == self.after:
                raise EngineInterrupted("worker a was lost")
            yield Delta(word)
        yield Delta("", finish="stop", usage=TokenUsage(5, 3), worker="b")

    async def check(self) -> None: ...

    async def aclose(self) -> None: ...


def step_over(engine: Lossy) -> OpenStep:
    return Scope(inquiry(engine, ScriptedRetriever({}), "Where?")).step("answer", "Where?")


def events_of(step: OpenStep) -> list[BaseEvent]:
    """Where the events of a step go, as long as it emits."""
    events: list[BaseEvent] = []

    async def emit(event: BaseEvent) -> None:
        events.append(event)

    step.inquiry.emit = emit
    return events


class Thinking(Lossy):
    """Tells that it was reasoning once it begins to answer."""

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        yield Delta("It is Rome")
        yield Delta("Paris", voids=True)
        yield Delta("", finish="stop", usage=TokenUsage(5, 3))


async def test_reasoning_before_an_output_is_no_part_of_it() -> None:
    assert (await step_over(Thinking(losses=0)).ask("reader", REQUEST)).text == "Paris"


async def test_a_whole_call_is_made_again_and_counted() -> None:
    engine = Lossy(losses=RESTARTS)
    step = step_over(engine)

    whole = await step.ask("reader", REQUEST)

    assert whole.text == "It is Paris"
    assert step.usage["llm_calls"] == RESTARTS + 1
    assert step.usage["completion_tokens"] == 2 * RESTARTS + 3
    assert engine.calls == [(step.inquiry.id, turn) for turn in range(RESTARTS + 1)]


async def test_tokens_shown_are_withdrawn_before_they_come_again() -> None:
    step = step_over(Lossy(losses=1))

    events = events_of(step)
    await step.write("reader", REQUEST, "answer")

    kinds = [getattr(event, "text", None) or getattr(event, "reason", "") for event in events]
    assert step.written == "It is Paris"
    assert kinds == ["It", " is", "restart", "It", " is", " Paris"]
    assert isinstance(events[2], Withdraw)


async def test_nothing_shown_nothing_withdrawn() -> None:
    step = step_over(Lossy(losses=1, after=0))

    events = events_of(step)
    await step.write("reader", REQUEST, "draft")
    assert events
    assert all(isinstance(event, Token) for event in events)


async def test_a_call_that_is_always_lost_fails() -> None:
    with pytest.raises(EngineInterrupted):
        await step_over(Lossy(losses=9)).ask("reader", REQUEST)

    step = step_over(Lossy(losses=9))
    events = events_of(step)
    with pytest.raises(EngineInterrupted):
        await step.write("reader", REQUEST, "answer")
    assert step.usage["llm_calls"] == RESTARTS + 1
    assert sum(isinstance(event, Withdraw) for event in events) == RESTARTS
