"""Questions through the entry of HTTP; failures are rows; the command's exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from rich.console import Console

from service.answer.events import (
    BaseEvent,
    Done,
    QueryIssued,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
)
from service.answer.request import PreparedRequest
from service.core.errors import EngineFailure
from service.core.settings import Settings
from service.engines.scripted import ScriptedGenerator, ScriptStep
from service.evaluation.command import EvaluateOptions, evaluate_file, run_evaluate
from service.evaluation.datasets import GoldQuestion
from service.evaluation.report import mean, summarise
from service.evaluation.runner import Ask, Plan, Row, evaluate
from service.runtime import open_runtime
from service.strategies.pipeline import answer_stream
from tests.support.asking import ScriptedRetriever, inquiry, passage, prepared

ROME = passage("rome", "Rome is the capital of Italy.")


def asking(script: dict[str, Any], most: list[int] | None = None) -> Ask:
    """The real stream over a scripted reader: `closed_book` and `single` questions."""
    running = [0]

    async def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        running[0] += 1
        if most is not None:
            most.append(running[0])
        try:
            reply = script[request.question]
            steps = [ScriptStep("true", "Task: relevance", times=None), ScriptStep(reply)]
            retriever = ScriptedRetriever({"": [ROME]})
            asked = inquiry(
                ScriptedGenerator(steps),
                retriever,
                request.question,
                route=request.route,
                loop=request.loop,
            )
            async for event in answer_stream(asked):
                yield event
        finally:
            running[0] -= 1

    return ask


def gold(number: int, answer: str, **more: Any) -> GoldQuestion:
    return GoldQuestion(f"q{number}", f"Question {number}?", (answer,), **more)


SINGLE = Plan(prepared(route="single"))


async def rows_of(questions: list[GoldQuestion], ask: Ask, plan: Plan = SINGLE) -> list[Row]:
    return [row async for row in evaluate(questions, ask, plan)]


@pytest.mark.anyio
async def test_a_row_says_what_was_asked_answered_and_spent() -> None:
    (row,) = await rows_of([gold(1, "Rome", route="single")], asking({"Question 1?": "Rome"}))
    assert (row.prediction, row.answered, row.error) == ("Rome", True, None)
    assert (row.route, row.loop, row.stopped_by) == ("single", "anrag", "answer")
    assert (row.steps, row.retrievals, row.llm_calls) == (1, 1, 2)
    assert row.prompt_tokens > 0
    assert row.completion_tokens > 0
    assert row.ms is not None
    assert row.scores == {
        "em": 1, "f1": 1, "accuracy": 1, "compound_accuracy": None, "citation_hit": 1,
        "supporting_hit": None, "route_accuracy": None,
    }  # fmt: skip


@pytest.mark.anyio
async def test_rows_come_in_the_order_of_the_questions_and_concurrency_is_bounded() -> None:
    most: list[int] = []
    script = {f"Question {n}?": str(n) for n in range(20)}

    async def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        await anyio.sleep(0.02 if request.question == "Question 0?" else 0)
        async for event in asking(script, most)(request):
            await anyio.lowlevel.checkpoint()
            yield event

    plan = Plan(prepared(route="single"), concurrency=3)
    rows = await rows_of([gold(n, str(n)) for n in range(20)], ask, plan)
    assert [row.id for row in rows] == [f"q{n}" for n in range(20)]
    assert all(row.scores["em"] == 1 for row in rows)
    assert max(most) <= 3


@pytest.mark.anyio
async def test_a_failed_question_is_a_row_counted_wrong() -> None:
    script = {"Question 1?": EngineFailure("gone"), "Question 2?": "Rome"}
    rows = await rows_of([gold(1, "Rome", route="single"), gold(2, "Rome")], asking(script))
    assert [row.answered for row in rows] == [False, True]
    assert rows[0].error == "urn:revelator:problem:engine-unavailable: gone"
    assert rows[0].scores["em"] == rows[0].scores["citation_hit"] == 0
    assert rows[0].retrievals == 1
    summary = summarise(rows)[0]
    assert (summary.rows, summary.failed, summary.means["em"]) == (2, 1, 0.5)


async def _cut_short(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
    yield Start(id="a", question=request.question)
    yield RouteChosen(route="complex", loop="autorag", by="model")
    yield StepStart(step="1", kind="retrieve")
    yield QueryIssued(step="1", query="q", retriever="bm25")
    yield StepEnd(step="1")
    yield Done()


async def _raises(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
    yield Start(id="a", question=request.question)
    raise ZeroDivisionError("a bug")


async def _refuses(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
    raise EngineFailure("never started")
    yield Done()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (_cut_short, "The stream ended without an answer or an error."),
        (_raises, "ZeroDivisionError: a bug"),
        (_refuses, "urn:revelator:problem:engine-unavailable: never started"),
    ],
)
async def test_whatever_goes_wrong_is_a_row(ask: Ask, error: str) -> None:
    (row,) = await rows_of([gold(1, "x")], ask)
    assert row.error == error
    assert not row.answered
    assert row.retrievals == (1 if ask is _cut_short else 0)


@pytest.mark.anyio
async def test_the_route_is_scored_where_the_service_chose_it() -> None:
    questions = [gold(1, "x", route="complex"), gold(2, "x", route="single"), gold(3, "x")]
    free = await rows_of(questions, _cut_short, Plan(prepared()))
    assert [row.scores["route_accuracy"] for row in free] == [1, 0, None]
    named = await rows_of(questions, _cut_short)
    assert [row.scores["route_accuracy"] for row in named] == [None, None, None]


@pytest.mark.anyio
async def test_an_abstention_is_no_failure_and_counts_as_unanswered() -> None:
    async def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        asked = inquiry(ScriptedGenerator(), ScriptedRetriever({}), "Q?", route="single")
        async for event in answer_stream(asked):
            yield event

    (row,) = await rows_of([gold(1, "no")], ask)
    assert (row.error, row.answered, row.scores["accuracy"]) == (None, False, 0)
    assert row.prediction


@pytest.mark.anyio
async def test_gold_routes_are_asked_for_where_there_are_any() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        asked.append((request.route, request.loop))
        yield Done()

    questions = [gold(1, "x", route="complex"), gold(2, "x", route="direct"), gold(3, "x")]
    plan = Plan(prepared(loop="autorag"), concurrency=1, gold_routes=True)
    await rows_of(questions, ask, plan)
    assert asked == [("complex", "autorag"), ("direct", "default"), ("auto", "autorag")]


@pytest.mark.anyio
async def test_means_are_over_all_and_per_gold_route() -> None:
    script = {"Question 1?": "Rome", "Question 2?": "Rome and Oslo", "Question 3?": "Rome"}
    questions = [
        gold(1, "Rome", route="single"),
        gold(2, "Rome && 1984", route="compound", parts=(("Rome",), ("1984",))),
        gold(3, "A && B && C", route="compound", parts=(("A",), ("Bb",), ("Cc",))),
    ]
    summaries = summarise(await rows_of(questions, asking(script)))
    assert [(s.group, s.rows) for s in summaries] == [("all", 3), ("single", 1), ("compound", 2)]
    assert summaries[0].means["route_accuracy"] is None
    assert summaries[1].means["compound_accuracy"] is None
    assert summaries[2].means["compound_accuracy"] == 0.25
    assert summaries[2].means["compound_accuracy_micro"] == 0.2


def test_the_mean_of_nothing_is_none() -> None:
    assert mean([None, None]) is None
    assert mean([None, 1, 0]) == 0.5


def dataset(path: Path, *answers: str) -> Path:
    lines = [
        json.dumps({"question": f"Question {n}?", "answer": answer})
        for n, answer in enumerate(answers, 1)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


async def command(file: Path, ask: Ask, **options: Any) -> tuple[int, str]:
    screen = Console(file=io.StringIO(), width=120)
    code = await run_evaluate(file, ask, EvaluateOptions(SINGLE, **options), screen)
    assert isinstance(screen.file, io.StringIO)
    return code, screen.file.getvalue()


@pytest.mark.anyio
async def test_the_command_writes_rows_and_shows_a_table(tmp_path: Path) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome", "Oslo"), tmp_path / "rows.jsonl"
    ask = asking({"Question 1?": "Rome", "Question 2?": "Rome"})
    code, shown = await command(file, ask, out=out)
    assert code == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["scores"]["em"] for row in rows] == [1, 0]
    assert rows[0]["evaluators"]["em"] == 1
    assert "citation hit rate" in shown
    assert "0.500" in shown
    assert "compound accuracy" not in shown
    assert "evaluators: em 1, f1 1, " in shown


@pytest.mark.anyio
async def test_the_command_exits_1_when_questions_failed(tmp_path: Path) -> None:
    file = dataset(tmp_path / "d.jsonl", "Rome", "Oslo")
    ask = asking({"Question 1?": "Rome", "Question 2?": EngineFailure("gone")})
    code, shown = await command(file, ask)
    assert code == 1
    assert "failed: 2: urn:revelator:problem:engine-unavailable: gone" in shown


@pytest.mark.anyio
async def test_a_bad_file_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"question": "Q?", "answer": "x"}\n{"question": ""}\n', encoding="utf-8")
    code, shown = await command(file, asking({}))
    assert code == 2
    assert f"{file}:2: has no answer" in shown


@pytest.mark.anyio
async def test_rows_that_cannot_be_written_and_a_limit_of_nothing(tmp_path: Path) -> None:
    file = dataset(tmp_path / "d.jsonl", "Rome")
    code, shown = await command(file, asking({}), out=tmp_path / "absent" / "rows.jsonl")
    assert (code, "cannot be written" in shown) == (2, True)
    code, shown = await command(file, asking({}), limit=0)
    assert (code, "leaves no questions" in shown) == (2, True)


@pytest.mark.anyio
async def test_a_limit_asks_the_first_questions_only(tmp_path: Path) -> None:
    file = dataset(tmp_path / "d.jsonl", "Rome", "Oslo")
    code, _ = await command(file, asking({"Question 1?": "Rome"}), limit=1)
    assert code == 0


@pytest.mark.anyio
async def test_evaluate_file_opens_the_runtime_once_the_file_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedGenerator(
        [ScriptStep("true", "Task: relevance", times=None), ScriptStep("Rome", times=None)]
    )
    retriever = ScriptedRetriever({"": [ROME]})
    opened = partial(open_runtime, engines={"default": engine}, retriever=retriever)
    monkeypatch.setattr("service.evaluation.command.open_runtime", opened)
    fields = {"route": "single", "collection": None}
    file = dataset(tmp_path / "d.jsonl", "Rome", "Oslo")
    assert await evaluate_file(Settings(), file, fields, concurrency=2) == 0
    assert len(retriever.requests) == 2
    assert await evaluate_file(Settings(), tmp_path / "absent.jsonl", fields) == 2
    assert "cannot be read" in capsys.readouterr().out
