"""Limits of a question: what was found by then is answered from, and no count exceeds its limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from service.answer.events import AnswerReady, BaseEvent, Failed, StepEnd, StepStart
from service.core.domain import Answer
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from tests.stubs.signal_engine import DraftScript, SignalEngine
from tests.support.asking import ScriptedRetriever, answer_stream, body_of, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep, render
from tests.unit.strategies.efficientrag.test_loop import labelling
from tests.unit.strategies.test_handlers import BELLINI, NOISE, NORMA, QUESTION, decomposed, say

SLOW = {"timeout_s": 0.5}


def kept(body: Answer) -> list[tuple[str, str | None]]:
    return [(p.passage_id, p.reason) for step in body.steps for p in step.passages if p.kept]


async def test_verdicts_known_at_the_deadline_stay() -> None:
    script = [
        say(["Task: relevance", "Doc: Bellini:"], "true"),
        ScriptStep(match="Task: relevance", reply="true", delay=5, times=None),
        say(["Task: answer", 'Doc1: "Bellini'], "Catania"),
    ]
    body = await body_of(script, {"": [NOISE, BELLINI]}, "Where?", route="single", limits=SLOW)
    assert (body.answer, body.stopped_by) == ("Catania", "deadline")
    assert kept(body) == [("bellini", "relevant")]
    assert [p.reason for p in body.steps[0].passages] == ["not judged", "relevant"]


async def test_a_later_hop_that_could_not_be_read_is_worth_more_than_the_pairs() -> None:
    script = [
        say(["Task: ending", '""nothing""'], "no"),
        say(["Task: refine", '""nothing""'], "Who composed Norma?"),
        say("Task: relevance", "true", None),
        say(["Task: answer", "Who composed"], "Bellini"),
        say("Task: ending", "no"),
        say("Task: refine", "Where was Bellini born?"),
        ScriptStep(match=["Task: answer", "Where was"], reply="x", delay=5),
        say(["Task: answer", QUESTION, "Norma:", "Bellini: Vincenzo"], "Catania"),
    ]
    hits = {"Norma": [NORMA], "born": [BELLINI]}
    body = await body_of(script, hits, QUESTION, route="complex", limits=SLOW)
    assert (body.answer, body.stopped_by) == ("Catania", "deadline")


async def test_compound_parts_out_of_time_leave_their_passages_to_one_answer() -> None:
    script = [
        decomposed("Who composed Norma?", "Where was Bellini born?"),
        say(["Task: relevance", "Who composed"], "true", None),
        say(["Task: relevance", "Where was"], "true", None),
        ScriptStep(match=["Doc1", "\nQuestion: Who composed Norma?"], reply="x", delay=5),
        ScriptStep(match=["Doc1", "\nQuestion: Where was Bellini born?"], reply="x", delay=5),
        say(["Task: answer", "Question: both?", "Doc1", "Doc2"], "Bellini, Catania"),
    ]
    hits = {"Norma": [NORMA], "Bellini": [BELLINI]}
    body = await body_of(script, hits, "both?", route="compound", limits=SLOW)
    assert (body.answer, body.stopped_by) == ("Bellini, Catania", "deadline")
    assert {citation.passage_id for citation in body.citations} == {"norma", "bellini"}


@pytest.mark.parametrize(("calls", "asked"), [(1, 1), (3, 3), (6, 6)])
async def test_the_last_call_goes_to_the_answer(calls: int, asked: int) -> None:
    script = [
        ScriptStep(match="Task: route", reply="single-step question", times=None),
        ScriptStep(match="Task: relevance", reply="true", times=None),
        say("Task: answer", "Bellini"),
    ]
    hits = {"": [NORMA, *(passage(f"p{n}", "Of no use.") for n in range(9))]}
    engine = ScriptedGenerator(script)
    limits = {"max_llm_calls": calls}
    body = await finished(inquiry(engine, ScriptedRetriever(hits), "Who?", limits=limits))
    assert (body.answer, body.stopped_by, body.usage.llm_calls) == ("Bellini", "budget", asked)


async def finished(asked: Any) -> Answer:
    events = [event async for event in answer_stream(asked)]
    return next(event.body for event in events if isinstance(event, AnswerReady))


REPLIES = {
    "Task: route": "compound question",
    "Task: decompose": '{"thought": "t", "decomposition": ["Who wrote Norma?", "Where?", "When?"]}',
    "Task: ending": "no",
}


def reply(request: GenerationRequest) -> str:
    """What any prompt of any loop might be answered with, never the same question twice."""
    prompt = render(request)
    if known := next((text for task, text in REPLIES.items() if task in prompt), None):
        return known
    if "Task: refine" in prompt:
        return f"Question {len(prompt)}?"
    if "Task: relevance" in prompt:
        return "true" if "Norma" in prompt else "what?"
    if request.prompt is not None:
        return f"Norma is opera {len(prompt)}. It is good."
    if len(request.messages) > 1 or request.max_tokens in (150, 200):
        return f"Intermediate Answer: it is.\n\nRefined Query: query {len(prompt)}"
    return "" if len(prompt) % 3 == 0 else "Vincenzo Bellini"


ROUTES = ["auto", "direct", "single", "compound", "complex"]
LOOPS = ["anrag", "autorag", "dragin", "efficientrag", "ircot", "iter_retgen", "self_ask"]


def engine_for(loop: str) -> Any:
    if loop != "dragin":
        return ScriptedGenerator([ScriptStep(reply, times=None)])
    draft = DraftScript(" Norma is by Verdi. It is good.", loud={"Verdi.": 9.0})
    return SignalEngine([draft] * 400, [ScriptStep(reply, times=None)])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("route", ROUTES)
@examples(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    calls=st.integers(1, 40),
    retrievals=st.integers(1, 6),
    tokens=st.one_of(st.integers(1, 3000), st.just(400_000)),
    policy=st.sampled_from(["abstain", "closed_book", "top3_unfiltered"]),
)
async def test_no_route_and_no_loop_spends_more_than_it_may(
    route: str, loop: str, calls: int, retrievals: int, tokens: int, policy: str
) -> None:
    limits = {"max_llm_calls": calls, "max_retrievals": retrievals, "max_tokens": tokens}
    settings = Settings.model_validate(
        {
            "answers": {"no_evidence": policy},
            "autorag": {"mode": "tuned"},
            "dragin": {"profile": "official"},
            "routes": {"escalate": "always"},
        }
    )
    retriever = ScriptedRetriever({"Norma": [NORMA, NOISE], "": [NOISE, BELLINI]})
    asked = inquiry(
        engine_for(loop), retriever, "Who composed it?", route=route, loop=loop, limits=limits,
        settings=settings, labelling=labelling(),
    )  # fmt: skip
    events: list[BaseEvent] = [event async for event in answer_stream(asked)]
    assert asked.budget.llm_calls <= calls
    assert len(retriever.requests) == asked.budget.retrievals <= retrievals
    most_of_a_call = 1500  # tokens: a prompt of these scripts and its output
    assert asked.budget.tokens <= tokens + most_of_a_call
    assert asked.budget.under_way == 0
    assert not any(isinstance(event, Failed) for event in events)
    (ready,) = [event.body for event in events if isinstance(event, AnswerReady)]
    assert ready.answer
    assert ready.usage.llm_calls == asked.budget.llm_calls
    assert ready.usage.retrievals == asked.budget.retrievals
    opened = sorted(event.step or "" for event in events if isinstance(event, StepStart))
    assert opened == sorted(event.step or "" for event in events if isinstance(event, StepEnd))
