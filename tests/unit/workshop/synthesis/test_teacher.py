"""The teacher's patience: limits, outages, refusals."""

from __future__ import annotations

import pytest

from service.core.errors import EngineFailure, EngineLimited, EngineTimeout, Overloaded
from service.engines.base import Message, TokenUsage
from service.workshop.synthesis.contract import (
    FAILURES,
    LIMITS,
    LONGEST_WAIT_S,
    AskTeacher,
    Session,
    Spent,
    Teacher,
    wait_after,
)
from tests.support.scripted import ScriptedGenerator, ScriptStep
from tests.unit.workshop.synthesis.stepping import Clock, Reply, limited

ASK = AskTeacher((Message("user", "Which?"),), stage="label")
USAGE = TokenUsage(5, 2)


def teacher_of(*replies: ScriptStep) -> tuple[ScriptedGenerator, Teacher, Clock]:
    clock = Clock()
    engine = ScriptedGenerator(replies, ordered=True)
    return engine, Teacher(engine, "t", sleep=clock.sleep, clock=clock), clock


async def test_a_limit_is_waited_for_as_long_as_the_server_says() -> None:
    engine, teacher, clock = teacher_of(
        ScriptStep(limited(7)), ScriptStep(limited(0)), ScriptStep("this", usage=USAGE)
    )
    spent = Spent()
    assert await teacher.say(ASK, 1, spent) == Reply("this")
    assert clock.slept == [7.0, 2.0]  # and where it says nothing, by our own growing waits
    assert (spent.calls, spent.prompt_tokens, spent.completion_tokens) == (3, 5, 2)
    assert spent.bad == {"label: rate-limited": 2}
    engine.assert_finished()


async def test_no_call_begins_while_the_server_limits() -> None:
    _, teacher, clock = teacher_of(ScriptStep(limited(30)), ScriptStep("a"), ScriptStep("b"))
    await teacher.say(ASK, 1, Spent())
    assert clock.now == 30.0
    await teacher.say(ASK, 1, Spent())
    assert clock.now == 30.0


async def test_what_breaks_is_tried_again_for_a_while() -> None:
    failures = [ScriptStep(EngineTimeout("slow")), ScriptStep(Overloaded("busy"))]
    _, teacher, clock = teacher_of(*failures, ScriptStep("this"))
    spent = Spent()
    await teacher.say(ASK, 1, spent)
    assert clock.slept == [1.0, 2.0]
    assert spent.bad == {"label: timed out": 1, "label: engine failed": 1}


async def test_an_outage_ends_the_patience() -> None:
    _, teacher, clock = teacher_of(ScriptStep(EngineFailure("out"), times=None))
    with pytest.raises(EngineFailure, match="out"):
        await teacher.say(ASK, 1, Spent())
    assert clock.slept == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_the_request_is_as_the_pipeline_wants_it() -> None:
    engine = ScriptedGenerator([ScriptStep("x")])
    ask = AskTeacher(ASK.messages, stage="q", temperature=0.3, stop=("\n",))
    await Teacher(engine, "label", "model-x").say(ask, 11, Spent())
    (request,) = engine.requests
    assert (request.temperature, request.stop) == (0.3, ("\n",))
    assert (request.seed, request.model) == (11, "model-x")


async def test_a_stage_may_have_a_teacher_of_its_own() -> None:
    """As in Auto-RAG's synthesis, where another model writes the queries."""
    engine, teacher, _ = teacher_of(ScriptStep("a plan"))
    other_engine, other, _ = teacher_of(ScriptStep("a query"))
    session = Session(teacher, None, "key", {"query": other})  # type: ignore[arg-type]
    assert await session.ask(AskTeacher(ASK.messages, stage="reason"), str) == "a plan"
    assert await session.ask(AskTeacher(ASK.messages, stage="query"), str) == "a query"
    assert session.spent.calls == 2
    engine.assert_finished()
    other_engine.assert_finished()


def test_waits_grow_to_a_bound_and_end() -> None:
    assert wait_after(EngineFailure(""), FAILURES + 1) is None
    assert wait_after(EngineLimited(""), LIMITS) == LONGEST_WAIT_S
    assert wait_after(EngineLimited(""), LIMITS + 1) is None
    assert wait_after(limited(600), 1) == 600.0
