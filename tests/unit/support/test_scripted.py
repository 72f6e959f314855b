"""The scripted engine fails on calls that are not in its script, and on steps left unused."""

from __future__ import annotations

import asyncio
import re

import anyio
import pytest

from service.core.concurrency import closing
from service.core.errors import EngineFailure, RevelatorError
from service.engines.base import GenerationRequest, Message, complete
from tests.support.scripted import ScriptedGenerator, ScriptError, ScriptStep


def ask(text: str) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),))


async def test_steps_are_found_by_what_they_match_and_used_once() -> None:
    steps = [
        ScriptStep("single", match="Task: route"),
        ScriptStep("true", match=["Task: relevance", "Seine"]),
        ScriptStep("false", match=re.compile(r"Task: relevance.*Rhine")),
        ScriptStep(" It is\n Paris . ", match=lambda request: request.max_tokens == 64),
    ]
    with ScriptedGenerator(steps) as engine:
        asked = ("Task: relevance Rhine", "Task: relevance Seine", "Task: route", "Task: answer")
        done = await asyncio.gather(*(complete(engine, ask(prompt)) for prompt in asked))
    assert [each.text for each in done] == ["false", "true", "single", " It is\n Paris . "]
    assert (done[3].usage.prompt_tokens, done[3].usage.completion_tokens) == (3, 4)
    assert (len(engine.requests), engine.most_running, engine.running) == (4, 4, 0)


async def test_calls_and_steps_that_do_not_meet_are_failures() -> None:
    engine = ScriptedGenerator([ScriptStep("yes", match="Task: ending")])
    with pytest.raises(ScriptError, match="unexpected call: 'user: Task: route'") as failure:
        await complete(engine, ask("Task: route"))
    await complete(engine, ask("Task: ending"))
    assert isinstance(failure.value, AssertionError)
    assert not isinstance(failure.value, RevelatorError)
    with pytest.raises(ScriptError, match="unexpected call"):
        engine.assert_finished()

    engine = ScriptedGenerator([ScriptStep("a", match="A", times=2), ScriptStep("b", times=None)])
    await complete(engine, ask("A"))
    with pytest.raises(ScriptError, match="never used: 'A'"):
        engine.assert_finished()

    with (
        pytest.raises(EngineFailure, match="out"),  # and not the unused step
        ScriptedGenerator([ScriptStep(EngineFailure("out")), ScriptStep("never")]) as engine,
    ):
        await complete(engine, ask("x"))


async def test_an_ordered_script_holds_the_order() -> None:
    steps = [ScriptStep("r", match="route"), ScriptStep("a", match="answer")]
    with ScriptedGenerator(steps, ordered=True) as engine:
        for text in ("route", "answer"):
            await complete(engine, ask(text))
    with pytest.raises(ScriptError):
        await complete(ScriptedGenerator(steps, ordered=True), ask("answer"))


async def test_pieces_failures_and_gates() -> None:
    engine = ScriptedGenerator([ScriptStep(["Pa", "ris", EngineFailure("cut off")])])
    deltas = engine.stream(ask("x"))
    assert [(await anext(deltas)).text for _ in range(2)] == ["Pa", "ris"]
    with pytest.raises(EngineFailure):
        await anext(deltas)

    gate = asyncio.Event()
    engine = ScriptedGenerator([ScriptStep("Paris", gate=gate, times=2)])
    with anyio.move_on_after(0.02) as scope:
        await complete(engine, ask("x"))
    assert scope.cancelled_caught
    assert (engine.aborted, engine.running) == (1, 0)
    gate.set()
    async with closing(engine.stream(ask("x"))) as left:
        await anext(left)
    assert (engine.aborted, engine.running) == (2, 0)
