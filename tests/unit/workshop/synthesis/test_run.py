"""The driver over a pipeline of one question: what becomes of each item, whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from service.core.domain import Passage
from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    EngineRefusal,
    InvalidRequest,
    StoreError,
)
from service.engines.base import GenerationRequest, Message
from service.workshop.rows import RowOrigin, RowProvenance
from service.workshop.synthesis.command import (
    ENTRY,
    OUTAGE,
    JournalEntry,
    Report,
    Synthesis,
    SynthesisOptions,
    open_journal,
)
from service.workshop.synthesis.contract import (
    AskTeacher,
    Item,
    OutputRow,
    Pipeline,
    Prompts,
    Session,
    Spent,
    Teacher,
    UnusableReply,
    items_of,
    read_lines,
)
from tests.support.scripted import ScriptedGenerator, ScriptStep
from tests.unit.workshop.synthesis.stepping import HELD_OUT, KNOWN, Clock


def read(row: Any, default_id: str) -> Item[str]:
    return Item(default_id, row["ask"], RowOrigin())


def good(text: str) -> str:
    if text.startswith("bad"):
        raise UnusableReply("said to be bad")
    return text


async def work(item: Item[str], session: Session) -> list[OutputRow]:
    said = await session.ask(AskTeacher((Message("user", item.content),), stage="q"), good)
    found = await session.search(item.content, 3)
    fields = {"question": item.content, "said": said, "drawn": session.rng.random()}
    return [OutputRow(fields, RowOrigin().beside(found))]


def pipeline_of(**changed: Any) -> Pipeline[str]:
    given: dict[str, Any] = {
        "read": lambda lines, rng, bad: items_of(lines, read, bad), "work": work
    }  # fmt: skip
    return Pipeline("compound", 1, Prompts("compound"), **(given | changed))


async def found(query: str, top_k: int, retriever: str) -> tuple[Passage, ...]:
    """A held-out passage for the question that asks for it."""
    return (Passage("p", HELD_OUT if query == "leak" else KNOWN, ""),)


class Run(NamedTuple):
    """What a run has besides its items and its folder."""

    engine: ScriptedGenerator
    pipeline: Pipeline[str]
    options: dict[str, Any]

    def of(self, folder: Path, **changed: Any) -> Synthesis:
        clock = Clock()
        teacher = Teacher(self.engine, "model", sleep=clock.sleep, clock=clock)
        given = {"date": "2026-01-31", "concurrency": 1, **self.options, **changed}
        options = SynthesisOptions(folder / "in", folder / "out.jsonl", **given)
        return Synthesis(self.pipeline, teacher, found, options)


def run_of(engine: ScriptedGenerator, pipeline: Pipeline[str] | None = None, **options: Any) -> Run:
    return Run(engine, pipeline or pipeline_of(), options)


def asking(*asked: str, side: RowOrigin | None = None) -> list[Item[str]]:
    return [Item(f"i{n}", text, side or RowOrigin()) for n, text in enumerate(asked)]


async def run_over(
    folder: Path, run: Run, items: list[Item[str]], **changed: Any
) -> tuple[Report, list[dict[str, Any]]]:
    report = await run.of(folder, **changed).over(items, [], Console(quiet=True))
    lines = (folder / "out.jsonl").read_text().splitlines()
    return report, [json.loads(line) for line in lines]


ANY = ScriptStep(lambda request: request.messages[0].content.upper(), times=None)


async def test_rows_stand_in_the_order_of_the_items_with_their_provenance(tmp_path: Path) -> None:
    last = asyncio.Event()

    def say_c(request: GenerationRequest) -> str:
        last.set()
        return "C"

    engine = ScriptedGenerator([ScriptStep("A", "a", gate=last), ScriptStep(say_c, "c"), ANY])
    run = run_of(engine, concurrency=4)
    report, rows = await run_over(tmp_path, run, asking("a", "b", "c"))
    assert [row["said"] for row in rows] == ["A", "B", "C"]
    wanted = {
        "pipeline": "compound", "version": 1, "prompts": Prompts("compound").digest,
        "teacher": "model", "engine": "scripted", "seed": 0, "side": "train",
        "date": "2026-01-31", "item": "i0", "sources": ["p"], "titles": [KNOWN],
        "answer_titles": [], "written": False,
    }  # fmt: skip
    assert wanted.items() <= rows[0]["provenance"].items()
    assert (report.input, report.written, report.rows) == (3, 3, 3)


def test_the_provenance_of_every_run_can_be_read(tmp_path: Path) -> None:
    run = run_of(ScriptedGenerator()).of(tmp_path)
    run = replace(run, others={"query": Teacher(run.teacher.engine, "another model")})
    made = RowProvenance.model_validate({**run.header, "item": "i0"})
    assert (made.teacher, made.query_teacher) == ("model", "another model")


async def test_what_draws_is_the_same_whatever_runs_beside_it(tmp_path: Path) -> None:
    made = []
    for concurrency in (1, 4):
        folder = tmp_path / str(concurrency)
        folder.mkdir()
        run = run_of(ScriptedGenerator([ANY]), concurrency=concurrency, seed=5)
        _, rows = await run_over(folder, run, asking(*"abcdef"))
        made.append(rows)
    assert made[0] == made[1]


async def test_items_and_rows_of_the_other_side_are_refused(tmp_path: Path) -> None:
    engine = ScriptedGenerator([ANY])
    held_out = Item("h", "never asked", RowOrigin(titles=[KNOWN, HELD_OUT]))
    items = [*asking("a", "leak"), held_out]
    report, rows = await run_over(tmp_path, run_of(engine), items)
    assert [row["said"] for row in rows] == ["A"]
    assert report.dropped == {"held out": 2}
    assert not any("never" in request.messages[0].content for request in engine.requests)


async def test_held_out_rows_for_tests(tmp_path: Path) -> None:
    async def of_held_out(item: Item[str], session: Session) -> list[OutputRow]:
        said = await session.ask(AskTeacher((Message("user", item.content),), stage="q"), good)
        return [OutputRow({"question": item.content, "said": said}, item.source)]

    test = RowOrigin(titles=[HELD_OUT], answer_titles=[HELD_OUT])
    items = [*asking("a", side=test), Item("t", "b", RowOrigin(titles=[KNOWN]))]
    run = run_of(ScriptedGenerator([ANY]), heldout=True, pipeline=pipeline_of(work=of_held_out))
    report, rows = await run_over(tmp_path, run, items)
    assert [row["said"] for row in rows] == ["A"]
    assert report.dropped == {"not held out": 1}


async def test_the_reasons_of_what_is_dropped(tmp_path: Path) -> None:
    engine = ScriptedGenerator(
        [
            ScriptStep("bad", "b", times=3),
            ScriptStep("cut", "c", times=3, finish="length"),
            ScriptStep(" ", "d", times=3),
            ScriptStep(EngineRefusal("no"), "e"),
            ANY,
        ]
    )
    report, rows = await run_over(tmp_path, run_of(engine), asking(*"abcde"))
    assert len(rows) == 1
    assert report.dropped == {
        "q: said to be bad": 1, "q: truncated": 1, "q: empty": 1, "q: refused by the teacher": 1,
    }  # fmt: skip
    assert report.spent.bad["q: truncated"] == 3
    assert report.spent.calls == 11


async def test_an_outage_ends_the_run_and_it_goes_on_later(tmp_path: Path) -> None:
    items = asking(*"abcdefghij")
    out = ScriptedGenerator([ScriptStep("A", "a"), ScriptStep(EngineFailure("down"), times=None)])
    said = "the teacher is unavailable: down; completed items are kept"
    with pytest.raises(EngineFailure, match=said):
        await run_over(tmp_path, run_of(out), items)
    assert not (tmp_path / "out.jsonl").exists()
    back = ScriptedGenerator([ANY])
    report, rows = await run_over(tmp_path, run_of(back), items)
    assert [row["said"] for row in rows] == [letter.upper() for letter in "abcdefghij"]
    assert len(back.requests) == 9
    assert report.written == 10


async def test_items_that_the_teacher_was_out_for_are_tried_in_the_next_run(tmp_path: Path) -> None:
    items = asking(*"abc")
    broken = ScriptedGenerator([ScriptStep(EngineFailure("x"), "b", times=6), ANY])
    report, _ = await run_over(tmp_path, run_of(broken), items)
    assert report.dropped == {"the teacher was unavailable": 1}
    assert OUTAGE > 1
    report, rows = await run_over(tmp_path, run_of(ScriptedGenerator([ANY])), items)
    assert (report.dropped, len(rows)) == ({}, 3)
    assert report.spent.calls == 3 + 5 + 1


async def test_done_items_are_not_asked_again_but_changed_ones_are(tmp_path: Path) -> None:
    await run_over(tmp_path, run_of(ScriptedGenerator([ANY])), asking("a", "b"))
    with ScriptedGenerator([ScriptStep("other", "c")]) as engine:
        _, rows = await run_over(tmp_path, run_of(engine), asking("a", "c"))
    assert [row["said"] for row in rows] == ["A", "other"]


async def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    await run_over(tmp_path, run_of(ScriptedGenerator([ANY])), asking("a"))
    with pytest.raises(ConfigurationError, match="is of another run: seed was 0 and is 1"):
        await run_over(tmp_path, run_of(ScriptedGenerator(), seed=1), asking("a"))


async def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path / "out.jsonl.journal", {}),
        pytest.raises(StoreError, match="another process is writing it"),
    ):
        await run_over(tmp_path, run_of(ScriptedGenerator()), asking("a"))


async def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.journal").write_text("my notes\n")
    with pytest.raises(StoreError, match="is not a journal of a synthesis"):
        await run_over(tmp_path, run_of(ScriptedGenerator()), asking("a"))
    assert (tmp_path / "out.jsonl.journal").read_text() == "my notes\n"


async def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        await run_over(tmp_path, run_of(ScriptedGenerator([ANY])), asking("a"))


async def test_what_is_not_selected_is_counted(tmp_path: Path) -> None:
    def first(rows: Any, rng: Any) -> tuple[Any, dict[str, int]]:
        return rows[:1], {"balance": len(rows) - 1}

    run = run_of(ScriptedGenerator([ANY]), pipeline=pipeline_of(select=first))
    report, _ = await run_over(tmp_path, run, asking("a", "b", "c"))
    assert (report.written, report.dropped, report.lost) == (1, {"not selected": 2}, {"balance": 2})


texts = st.text(st.characters(exclude_categories=()), max_size=8)
lists = st.lists(texts, max_size=2)
sources = st.builds(
    RowOrigin, sources=lists, titles=lists, answer_titles=lists, written=st.booleans()
)
rows = st.builds(OutputRow, st.dictionaries(texts, texts | st.integers()), sources, texts)
records = st.builds(
    JournalEntry,
    texts,
    st.lists(rows, max_size=2).map(tuple),
    st.none() | texts,
    st.dictionaries(texts, st.integers()),
    st.booleans(),
    st.builds(Spent, *[st.integers()] * 3, st.dictionaries(texts, st.integers()).map(Counter)),
)


@given(records)
def test_a_record_is_one_line_and_comes_back(record: JournalEntry) -> None:
    line = record.to_line()
    assert b"\n" not in line
    assert ENTRY.validate_python(json.loads(line)) == record


def test_bad_lines_have_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [b'{"a": 1}', b"", b"{", b"[1]", b"[" * 9_999]
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    good, bad = read_lines(path)
    assert good == [(1, {"a": 1})]
    assert bad == [(3, "is not JSON"), (4, "is not a JSON object"), (5, "is nested too deep")]


@pytest.mark.parametrize("content", [None, "", "\n \n", b"\xff"])
def test_an_input_without_lines(content: str | bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        InvalidRequest, match=r"in\.jsonl.*(cannot be read|has no lines|is not UTF)"
    ):
        read_lines(path)
