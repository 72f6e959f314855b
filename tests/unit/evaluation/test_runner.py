"""Questions through the entry of HTTP; failures are rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

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
from service.core.domain import Answer, Passage
from service.core.errors import EngineFailure, StoreError
from service.evaluation.datasets import GoldQuestion
from service.evaluation.means import by_route, means_of
from service.evaluation.rows import Key, Row
from service.evaluation.runner import Ask, Task, ask_one, work_off
from service.evaluation.traces import find_traces, read_trace, trace_path
from tests.support.asking import ScriptedRetriever, answer_stream, inquiry, passage, prepared
from tests.support.scripted import ScriptedGenerator, ScriptStep

ROME = passage("rome", "Rome is the capital of Italy.\u2028It is old. 𝛑")
OSLO = passage("oslo", "Oslo is the capital of Norway.")


def asking(
    replies: Mapping[str, str | Exception],
    hits: Sequence[Passage] = (ROME,),
    seen: list[BaseEvent] | None = None,
) -> Ask:
    """The real stream over a scripted reader, which replies to each question; `seen` gets the
    events."""

    async def ask(request: PreparedRequest, alter: object) -> AsyncIterator[BaseEvent]:
        steps = [
            ScriptStep("true", "Task: relevance", times=None),
            ScriptStep(replies[request.question]),
        ]
        asked = inquiry(
            ScriptedGenerator(steps), ScriptedRetriever({"": hits}), request.question,
            route=request.route, loop=request.loop,
        )  # fmt: skip
        async for event in answer_stream(asked):
            if seen is not None:
                seen.append(event.model_copy())
            yield event

    return ask


def gold(number: int, answer: str, **more: Any) -> GoldQuestion:
    return GoldQuestion(f"q{number}", f"Question {number}?", (answer,), **more)


async def rows_of(
    questions: list[GoldQuestion], ask: Ask, request: PreparedRequest | None = None, **more: Any
) -> list[Row]:
    request = request or prepared(route="single")
    tasks = [Task(question, request, **more) for question in questions]
    return [row async for row in work_off(tasks, ask, 3)]


async def test_a_row_says_what_was_asked_answered_and_spent() -> None:
    (row,) = await rows_of([gold(1, "Rome", route="single")], asking({"Question 1?": "Rome"}))
    assert (row.prediction, row.answered, row.error) == ("Rome", True, None)
    assert (row.route, row.loop, row.stopped_by) == ("single", "anrag", "answer")
    assert (row.steps, row.retrievals, row.llm_calls) == (1, 1, 2)
    assert row.prompt_tokens > 0
    assert row.completion_tokens > 0
    assert row.ms is not None
    assert row.scores == {
        "em": 1, "f1": 1, "precision": 1, "recall": 1, "accuracy": 1, "lenient_em": 1,
        "compound_accuracy": None, "citation_hit": 1, "supporting_hit": None,
        "supporting_recall": None, "supporting_precision": None, "pool_recall": None,
        "route_accuracy": None,
    }  # fmt: skip


async def _cut_short(request: PreparedRequest, alter: object) -> AsyncIterator[BaseEvent]:
    yield Start(id="a", question=request.question)
    yield RouteChosen(route="complex", loop="autorag", by="model")
    yield StepStart(step="1", kind="retrieve")
    yield QueryIssued(step="1", query="q", retriever="bm25")
    yield StepEnd(step="1")
    yield Done()


async def _raises(request: PreparedRequest, alter: object) -> AsyncIterator[BaseEvent]:
    yield Start(id="a", question=request.question)
    raise ZeroDivisionError("a bug")


async def _refuses(request: PreparedRequest, alter: object) -> AsyncIterator[BaseEvent]:
    raise EngineFailure("never started")
    yield Done()


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


async def test_the_route_is_scored_where_the_service_chose_it() -> None:
    questions = [gold(1, "x", route="complex"), gold(2, "x", route="single"), gold(3, "x")]
    free = await rows_of(questions, _cut_short, prepared())
    assert [row.scores["route_accuracy"] for row in free] == [1, 0, None]
    named = await rows_of(questions, _cut_short)
    assert [row.scores["route_accuracy"] for row in named] == [None, None, None]


async def test_means_are_over_all_and_per_gold_route() -> None:
    script = {"Question 1?": "Rome", "Question 2?": "Rome and Oslo", "Question 3?": "Rome"}
    questions = [
        gold(1, "Rome", route="single"),
        gold(2, "Rome && 1984", route="compound", parts=(("Rome",), ("1984",))),
        gold(3, "A && B && C", route="compound", parts=(("A",), ("Bb",), ("Cc",))),
    ]
    groups = by_route(await rows_of(questions, asking(script)))
    means = {name: means_of(own) for name, own in groups.items()}
    numbers = [(name, own["questions"]) for name, own in means.items()]
    assert numbers == [("all", 3), ("single", 1), ("compound", 2)]
    assert means["all"]["route_accuracy"] is None
    assert means["single"]["compound_accuracy"] is None
    assert means["compound"]["compound_accuracy"] == 0.25
    assert means["compound"]["compound_accuracy_micro"] == 0.2


# Traces: kept as they were, replayed byte for byte, refused where they are not whole.


GOLD = GoldQuestion("q/1", "Capital of Italy?", ("Rome", "Roma"), supporting=frozenset(["rome"]))


async def kept_trace(folder: Path, reply: str | Exception = "Rome") -> tuple[Path, list[BaseEvent]]:
    seen: list[BaseEvent] = []
    task = Task(GOLD, prepared(route="single"), dataset="d", method="single/anrag", traces=folder)
    assert await ask_one(task, asking({GOLD.question: reply}, [OSLO, ROME], seen))
    (path,) = find_traces([folder])
    return path, seen


async def test_a_trace_has_the_events_the_answer_and_the_gold_question(tmp_path: Path) -> None:
    path, events = await kept_trace(tmp_path)
    trace = read_trace(path)
    assert list(trace.events) == events
    assert isinstance(trace.result, Answer)
    assert trace.result.answer == "Rome"
    assert trace.header.key == Key("d", "single/anrag", "q/1")
    assert trace.header.gold == GOLD
    assert trace.header.request["route"] == "single"


async def test_a_trace_that_was_cut_short(tmp_path: Path) -> None:
    """Wherever it was cut, the message names file and line."""
    path, events = await kept_trace(tmp_path)
    whole = path.read_bytes()
    assert len(whole.splitlines()) != len(whole.split(b"\n"))  # a text has U+2028
    ends = [place for place, byte in enumerate(whole) if byte == 10]
    assert len(ends) == len(events) + 1
    for line, end in enumerate(ends[:-1], 1):
        path.write_bytes(whole[: end + 1])
        with pytest.raises(StoreError) as error:
            read_trace(path)
        assert error.value.detail.startswith(f"{path}:{line}: is truncated")
    path.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=rf":{len(ends)}: is truncated: the line has no end"):
        read_trace(path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is empty"):
        read_trace(path)


def changed(path: Path, line: int, **fields: Any) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    value = json.loads(lines[line - 1])
    lines[line - 1] = json.dumps(value | fields, ensure_ascii=False, separators=(",", ":"))
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "fields", "said"),
    [
        (1, {"trace": 0}, r":1: is not the first line of a trace .*trace: Input should be 2"),
        (1, {"gold": {}}, r":1: is not the first line of a trace .*gold.id: Field required"),
        (2, {"event": "begin"}, ":2: is not an event of this version"),
        (2, {"more": 1}, ":2: is not an event of this version .*more"),
        (2, {"seq": 0.0}, ":2: is not an event of this version .*its fields differ"),
        (2, {"question": "Another?"}, r":\d+: the preceding events do not produce this body"),
    ],
)
async def test_a_trace_of_another_version(
    tmp_path: Path, line: int, fields: dict[str, Any], said: str
) -> None:
    path, _ = await kept_trace(tmp_path)
    changed(path, line, **fields)
    with pytest.raises(StoreError, match=said) as error:
        read_trace(path)
    assert error.value.detail.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\n", "not UTF-8 at byte 0"),
        (b"{}\n", ":1: is not the first line of a trace"),
        (b"[" * 99_999 + b"\n", ":1: is not the first line of a trace"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said):
        read_trace(path)


async def test_traces_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"t\.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "t.jsonl")
    with pytest.raises(StoreError, match="there is no trace"):
        find_traces([tmp_path])


async def test_a_folder_that_cannot_be_written_ends_the_evaluation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        await kept_trace(tmp_path / "file")


def test_traces_are_looked_for_where_evaluations_write_them(tmp_path: Path) -> None:
    trace = trace_path(tmp_path, Key("d", "m", "1"))
    trace.parent.mkdir(parents=True)
    (tmp_path / "robustness").mkdir()
    for path in (trace, tmp_path / "rows.jsonl", tmp_path / "robustness" / "rows.jsonl"):
        path.touch()
    for folder in (tmp_path, tmp_path / "d", tmp_path / "d" / "m"):
        assert find_traces([folder]) == [trace]


def test_every_id_has_its_own_file_inside_the_folder(tmp_path: Path) -> None:
    names = ["a", "A/b", "A_b", "../../x", "..", ".", "", "ü", "a b", "\ud800"]
    names += ["x" * 500, "x" * 501]
    paths = [trace_path(tmp_path, Key("d", "m", name)) for name in names]
    assert len(set(paths)) == len(names)
    for path in paths:
        assert path.resolve().parent == tmp_path.resolve() / "d" / "m"
        assert len(path.name.encode()) <= 255
    assert trace_path(tmp_path, Key("d", "m", "q-1.2")) == tmp_path / "d" / "m" / "q-1.2.jsonl"
