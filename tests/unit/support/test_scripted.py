from __future__ import annotations

import asyncio
import re

import anyio
import pytest

from service.core.concurrency import closing
from service.core.errors import EngineFailure, RevelatorError
from service.engines.base import GenerationRequest, Message, complete
from tests.support.scripted import ScriptedGenerator, ScriptError, ScriptStep

pytestmark = pytest.mark.anyio


def ask(text: str) -> GenerationRequest:
    return GenerationRequest(messages=(Message("user", text),))


async def test_steps_are_found_by_what_they_match() -> None:
    with ScriptedGenerator(
        [
            ScriptStep("single", match="Task: route"),
            ScriptStep("true", match=["Task: relevance", "Seine"]),
            ScriptStep("false", match=re.compile(r"Task: relevance.*Rhine")),
            ScriptStep("Paris", match=lambda request: request.max_tokens == 64),
        ]
    ) as engine:
        for prompt, reply in [
            ("Task: relevance Rhine", "false"),
            ("Task: relevance Seine", "true"),
            ("Task: route", "single"),
            ("Task: answer", "Paris"),
        ]:
            assert (await complete(engine, ask(prompt))).text == reply
    assert len(engine.requests) == 4


async def test_parallel_calls_each_use_a_step_once() -> None:
    steps = [ScriptStep(str(n), match="Doc", delay=0.001) for n in range(10)]
    with ScriptedGenerator(steps) as engine:
        texts = await asyncio.gather(*(complete(engine, ask(f"Doc {n}")) for n in range(10)))

    assert sorted(c.text for c in texts) == [str(n) for n in range(10)]
    assert engine.most_running == 10
    assert engine.running == 0


async def test_an_unexpected_call_fails_at_once_and_again_at_the_end() -> None:
    engine = ScriptedGenerator([ScriptStep("yes", match="Task: ending")])

    with pytest.raises(ScriptError, match="unexpected call: 'user: Task: route'") as failure:
        await complete(engine, ask("Task: route"))
    await complete(engine, ask("Task: ending"))

    assert isinstance(failure.value, AssertionError)
    assert not isinstance(failure.value, RevelatorError)
    with pytest.raises(ScriptError, match="unexpected call"):
        engine.assert_finished()


async def test_unused_steps_fail_at_the_end() -> None:
    engine = ScriptedGenerator([ScriptStep("a", match="A", times=2), ScriptStep("b", times=None)])
    await complete(engine, ask("A"))

    with pytest.raises(ScriptError, match="never used: 'A'"):
        engine.assert_finished()


async def test_an_error_in_the_block_is_not_hidden_by_unused_steps() -> None:
    with (
        pytest.raises(EngineFailure, match="out"),
        ScriptedGenerator([ScriptStep(EngineFailure("out")), ScriptStep("never")]) as engine,
    ):
        await complete(engine, ask("x"))


async def test_an_ordered_script_holds_the_order_except_within_groups() -> None:
    def script() -> ScriptedGenerator:
        return ScriptedGenerator(
            [
                ScriptStep("r", match="route"),
                ScriptStep("1", match="doc one", group="judge"),
                ScriptStep("2", match="doc two", group="judge"),
                ScriptStep("a", match="answer"),
            ],
            ordered=True,
        )

    with script() as engine:
        for text in ["route", "doc two", "doc one", "answer"]:
            await complete(engine, ask(text))
    with pytest.raises(ScriptError):
        await complete(script(), ask("doc one"))


async def test_pieces_come_as_written_and_may_end_in_a_failure() -> None:
    engine = ScriptedGenerator([ScriptStep(["Pa", "ris", EngineFailure("cut off")])])
    deltas = engine.stream(ask("x"))

    assert [(await anext(deltas)).text for _ in range(2)] == ["Pa", "ris"]
    with pytest.raises(EngineFailure):
        await anext(deltas)


async def test_words_join_to_the_reply_and_are_counted() -> None:
    reply = " It is\n Paris . "
    engine = ScriptedGenerator([ScriptStep(reply)])

    completion = await complete(engine, ask("one two"))

    assert completion.text == reply
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 4)


async def test_a_gate_holds_the_reply_and_leaving_is_counted() -> None:
    gate = asyncio.Event()
    engine = ScriptedGenerator([ScriptStep("Paris", gate=gate, times=2)])

    with anyio.move_on_after(0.02) as scope:
        await complete(engine, ask("x"))
    assert scope.cancelled_caught
    assert (engine.aborted, engine.running) == (1, 0)

    gate.set()
    async with closing(engine.stream(ask("x"))) as deltas:
        await anext(deltas)
    assert (engine.aborted, engine.running) == (2, 0)
