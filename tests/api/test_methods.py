"""The routes and loops over HTTP: their bodies are the folds of their streams, and what a
deployment cannot run is refused before the first byte."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.answer.events import (
    AnswerReady,
    BaseEvent,
    Judgement,
    RouteChosen,
    StepEnd,
    ThoughtWritten,
    Token,
    Trigger,
    Withdraw,
)
from service.answer.fold import Fold
from service.cli.terminal import sample_questions
from service.core.domain import Answer
from service.core.errors import ConfigurationError
from service.core.settings import Settings
from service.encoders.base import Tag
from service.engines.base import Capabilities
from service.strategies import drafting, flare
from tests.api.test_answer import check_grammar
from tests.api.test_bad_input import check_problem
from tests.conformance.dragin_parity import WordRetriever, load_passages
from tests.conftest import need
from tests.stubs.word_labelling import write_checkpoint
from tests.support.asking import ScriptedRetriever
from tests.support.live import Live, answering, config, live, typed
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator, ScriptStep
from tests.support.tiny import open_tiny

FILM = "Who directed Laserblast?"
BRIDGE = "Where was the director of Goodbye, Franziska born?"
PATIENT: dict[str, Any] = {"default": {"timeout_s": 120}}  # for busy machines


def folded(wire: list[tuple[str, Any]]) -> tuple[Answer, list[BaseEvent]]:
    """The body of a stream, which is the fold of the events before it, and the events."""
    check_grammar(wire)
    events, fold = typed(wire), Fold()
    (ready,) = [event for event in events if isinstance(event, AnswerReady)]
    for event in events[: events.index(ready)]:
        fold.add(event)
    assert ready.body == fold.answer(ready.body.timing_ms)
    return ready.body, events


async def asked_twice(service: Live, question: str, **fields: Any) -> Answer:
    """The body of a question, which is alike when it is streamed."""
    fields = {"route": "single", "timeout_s": 300} | fields
    status, body = await service.ask(question, **fields)
    assert status == 200, body
    answer = Answer.model_validate(body)
    streamed, _ = folded(await service.stream(question, **fields))
    for name in ("answer", "usage", "citations", "route", "loop"):
        assert getattr(streamed, name) == getattr(answer, name)
    return answer


def shipped(folder: Path, **sections: Any) -> AbstractAsyncContextManager[Live]:
    """The service as it comes with the wheel."""
    need("onnxruntime")
    settings = config(data_dir=folder, engines=PATIENT, **sections)
    return live(settings=settings, own_stores=True, own_engines=True, watched=False)


# What is certain of a baseline with the shipped model, which was not taught facts: whether it
# answers, the calls of the model, and the kinds of its steps. The others search as they doubt.
BASELINES: dict[str, tuple[bool, int | None, list[str] | None]] = {
    "no_retrieval": (False, 1, ["answer"]),
    "one_retrieval": (True, 1, ["retrieve"]),
    "entropy_gate": (True, 2, ["answer", "retrieve"]),
    "margin_gate": (True, 2, ["answer", "retrieve"]),
    "trend_gate": (True, 2, ["answer", "retrieve"]),
    "fixed_length": (True, None, None),
    "fixed_sentence": (True, None, None),
    "flare": (True, None, None),
}


@pytest.mark.parametrize("loop", BASELINES)
async def test_the_baselines_answer_with_the_shipped_model(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "WINDOW", 8)
    monkeypatch.setattr(flare, "THETA", 0.99)  # it doubts what it drafts, and writes it anew
    async with shipped(tmp_path, dragin={"max_tokens": 32}) as service:
        answer = await asked_twice(service, FILM, loop=loop, max_steps=2, top_k=1)
    answered, calls, kinds = BASELINES[loop]
    assert (answer.loop, answer.answered) == (loop, answered)
    searched = [step for step in answer.steps if step.kind == "retrieve"]
    assert len(searched) == answer.usage.retrievals
    if kinds is not None:
        assert (answer.usage.llm_calls, [step.kind for step in answer.steps]) == (calls, kinds)
        if answered:
            assert answer.citations[0].title == "Laserblast"
        else:
            assert [step.flags for step in answer.steps] == [["closed_book", "declined"]]
        return
    assert (answer.steps[0].query, answer.steps[-1].kind) == (FILM, "answer")
    assert 1 <= len(searched) <= 2
    assert answer.citations or "unsupported" in answer.steps[-1].flags
    if loop == "flare":
        assert answer.usage.hallucinated == len(searched) - 1 == 1
        for step in searched[1:]:
            assert step.trigger is not None
            assert step.trigger.query == step.query
            assert step.trigger.score <= step.trigger.threshold == flare.THETA
    else:
        rest = [step for step in answer.steps if step.kind == "answer" and step.thought]
        assert answer.usage.generations == len(searched) + len(rest)
        assert all(step.answer and step.passages for step in searched)
        assert [step.query for step in searched[1:]] == [step.answer for step in searched[:-1]]


def claims_ircot(answer: Answer) -> None:
    assert answer.steps[0].query == BRIDGE
    assert answer.steps[1].query == answer.steps[0].answer
    assert answer.usage.llm_calls == answer.usage.retrievals + 1


def claims_iter_retgen(answer: Answer) -> None:
    for before, step in zip(answer.steps, answer.steps[1:], strict=False):
        assert step.query is None or step.query == f"{BRIDGE} {before.thought}"


def claims_self_ask(answer: Answer) -> None:
    asked = [step for step in answer.steps if step.kind == "retrieve"]
    assert asked
    assert all(step.query == step.question for step in asked)


def claims_efficientrag(answer: Answer) -> None:
    """A bridge is crossed without a call of the model."""
    first, second, read = answer.steps
    told = {passage.passage_id: str(passage.reason) for passage in first.passages}
    assert told["2wiki-02228"].startswith("continue")
    assert "Helmut Käutner" in str(first.thought)
    assert "Helmut Käutner" in str(second.query)
    assert "2wiki-02229" in {passage.passage_id for passage in second.passages if passage.kept}
    assert (read.llm_calls, answer.usage.llm_calls) == (1, 1)
    assert answer.answer == "Düsseldorf, Germany"


@pytest.mark.parametrize(
    ("loop", "claims"),
    [
        ("ircot", claims_ircot), ("iter_retgen", claims_iter_retgen),
        ("self_ask", claims_self_ask), ("efficientrag", claims_efficientrag),
    ],
)  # fmt: skip
async def test_a_bridge_is_crossed_over_the_sample(
    loop: str, claims: Callable[[Answer], None], tmp_path: Path
) -> None:
    engine = open_tiny(timeout_s=120)
    settings = config(data_dir=tmp_path, answers={"unsupported": "flag"})  # it guesses
    try:
        async with live(engine, settings=settings, own_stores=True) as service:
            answer = await asked_twice(service, BRIDGE, loop=loop)
    finally:
        await engine.aclose()
    assert (answer.loop, answer.answered, answer.steps[-1].kind) == (loop, True, "answer")
    claims(answer)


async def test_dragin_drafts_doubts_and_answers() -> None:
    settings = config(dragin={"threshold": 0.05, "max_tokens": 40})
    engine = open_tiny(timeout_s=120)
    try:
        retriever = WordRetriever(load_passages())
        async with live(engine, settings=settings, retriever=retriever) as service:
            wire = await service.stream(FILM, loop="dragin", route="single", max_steps=2)
    finally:
        await engine.aclose()
    answer, events = folded(wire)
    triggers = [event for event in events if isinstance(event, Trigger)]
    assert 1 <= len(triggers) <= 2
    assert all(trigger.score > trigger.threshold == 0.05 for trigger in triggers)
    assert any(isinstance(event, Withdraw) and event.reason == "trigger" for event in events)
    assert any(isinstance(event, Token) and event.role == "draft" for event in events)
    kinds = [(step.kind, step.trigger is not None) for step in answer.steps]
    assert kinds[:2] == [("answer", False), ("retrieve", True)]
    assert answer.usage.retrievals <= len(triggers)
    assert answer.citations or not answer.answered


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
@pytest.mark.parametrize(
    ("loop", "told"),
    [
        ("entropy_gate", "probabilities of its tokens"), ("flare", "probabilities of its tokens"),
        ("dragin", "does not provide token signals"), ("efficientrag", "revelator train labeler"),
    ],
)  # fmt: skip
async def test_a_loop_that_cannot_run_is_refused_before_the_first_byte(
    loop: str, told: str, path: str, tmp_path: Path
) -> None:
    engine = ScriptedGenerator(answering(), capabilities=Capabilities())
    settings = config(efficientrag={"location": tmp_path / "none"})
    async with live(engine, settings=settings) as service:
        body = {"question": "Who?", "loop": loop, "route": "single"}
        problem = check_problem(await service.post(path, json=body), 422, "loop-unavailable")
        assert "loop efficientrag" in (await service.get("/readyz")).json()["degraded"][0]
    assert told in problem["detail"]


LABELLED = "What is the city of the composer of Norma?"
READS = ScriptStep(match='Doc1: "Norma', reply="Catania", times=None)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Settings:
    tagged = {"opera": Tag.CONTINUE, "born": Tag.FINISH}
    write_checkpoint(tmp_path / "labeler", "labeler", {"vincenzo", "opera"}, tagged)
    write_checkpoint(tmp_path / "filter" / "served", "filter", {"city", "vincenzo"})
    return config(efficientrag={"location": tmp_path})


async def test_efficientrag_labels_filters_and_reads_once(checkpoints: Settings) -> None:
    asked: dict[str, Any] = {"loop": "efficientrag", "route": "single"}
    async with live([READS], settings=checkpoints) as service:
        answer, events = folded(await service.stream(LABELLED, **asked))
        others: list[str] = []

        async def ask() -> None:
            others.append((await service.ask(LABELLED, **asked))[1]["answer"])

        async with anyio.create_task_group() as group:  # they share the encoders
            for _ in range(8):
                group.start_soon(ask)
    assert others == ["Catania"] * 8
    assert [(step.kind, step.query) for step in answer.steps] == [
        ("retrieve", LABELLED), ("retrieve", "city Vincenzo"), ("answer", None),
    ]  # fmt: skip
    assert [e.text for e in events if isinstance(e, ThoughtWritten)] == ["opera Vincenzo"]
    assert len([event for event in events if isinstance(event, Judgement)]) == 6
    assert (answer.answer, answer.usage.llm_calls) == ("Catania", 1)
    assert {citation.passage_id for citation in answer.citations} == {"bellini"}


async def test_a_broken_encoder_is_named_and_remembered(
    checkpoints: Settings, tmp_path: Path
) -> None:
    model = tmp_path / "labeler" / "model.onnx"
    model.write_bytes(b"no model")
    async with live(settings=checkpoints) as service:
        events = await service.stream(LABELLED, loop="efficientrag", route="single")
        status, body = await service.ask(LABELLED, loop="efficientrag", route="single")
    assert [name for name, _ in events][-2:] == ["error", "done"]
    for problem in (events[-2][1]["problem"], body):
        assert problem["type"] == "urn:revelator:problem:loop-unavailable"
        assert str(model) in problem["detail"]
    assert status == 422


async def test_the_shipped_classifier_routes_without_a_call() -> None:
    need("onnxruntime")
    script = [step for step in answering() if step.match != "Task: route"]
    async with live(script, settings=config(routes={"classifier": "shipped"})) as service:
        answer, events = folded(await service.stream("Who composed Norma?"))
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("single", "classifier")
    assert 0.7 <= (chosen.confidence or 0) <= 1
    assert (answer.steps[0].kind, answer.steps[0].llm_calls) == ("route", 0)


async def test_a_service_without_its_classifier_does_not_start(tmp_path: Path) -> None:
    settings = config(routes={"classifier": str(tmp_path)})
    engines = {"default": ScriptedGenerator()}
    with pytest.raises(ConfigurationError, match="revelator train router"):
        async with open_scripted(settings, engines=engines, retriever=ScriptedRetriever()):
            pass


# One cycle reads the passage of the film, which does not tell of its director.
FILMS = ("director of Once Upon a Time in the West", "Goodbye, Franziska", "Riders of the Badlands")


async def test_a_question_that_one_step_gets_wrong_is_right_after_escalation(
    tmp_path: Path,
) -> None:
    rows: list[dict[str, Any]] = list(sample_questions())
    rows = [row for row in rows if any(film in row["question"] for film in FILMS)]
    assert len(rows) == len(FILMS)
    mended = False
    async with shipped(tmp_path, routes={"escalate": "always", "escalate_below": 0.95}) as service:
        for row in rows:
            asked = {"route": "single", "timeout_s": 300}
            answer, events = folded(await service.stream(row["question"], **asked))
            accepted = {row["answer"], *row["answer_aliases"]}
            first = next(event.answer for event in events if isinstance(event, StepEnd))
            by = [event.by for event in events if isinstance(event, RouteChosen)]
            mended |= (
                first not in accepted
                and by == ["request", "escalation"]
                and answer.route == "complex"
                and answer.answer in accepted
            )
            if mended:
                break
    assert mended, "no question was wrong first and right in the end"
