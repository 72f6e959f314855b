"""Every pipeline over rounds of a teacher, a third of them of no use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from service.core.errors import InvalidRequest
from service.workshop.facts.rows import TrainingRow, read_rows_of
from service.workshop.facts.splits import is_held_out
from service.workshop.synthesis.command import Synthesis, SynthesisOptions, read_input
from service.workshop.synthesis.contract import read_questions_of
from service.workshop.synthesis.pipelines import PipelineName, pipeline_of
from service.workshop.synthesis.pipelines.hanrag import target_of
from service.workshop.synthesis.pipelines.published import read_questions
from service.workshop.synthesis.report import Report, files_of
from service.workshop.synthesis.teacher import Teacher
from tests.unit.workshop.synthesis.rounds import Clock, Rounds, World
from tests.unit.workshop.synthesis.stepping import read_by, run_by_hand
from tests.unit.workshop.synthesis.worlds import WORLDS

DATE = "2026-01-31"
LINES = {"autorag": 20, "hanrag": 136, "efficientrag": 56, "compound": 40}  # more than 100 rounds
BY_NAME = {world.name: world for world in WORLDS}


async def ran(
    world: World, output: Path, *, exclude: Sequence[Path] = (), begun: int = 0
) -> tuple[Report, Counter[str]]:
    """The report of a run, and the kinds of its rounds."""
    engine, clock = Rounds(world, begun), Clock()
    teacher = Teacher(engine, "model", sleep=clock.sleep, clock=clock)
    options = SynthesisOptions(
        output.with_suffix(".in"), output, date=DATE, exclude=list(exclude), concurrency=1
    )
    lines = list(map(json.dumps, world.lines[: LINES[world.name]]))
    options.input.write_text("\n".join([*lines, "not JSON", '"text"', "{}", ""]))
    pipeline = pipeline_of(world.name)
    run = Synthesis(pipeline, teacher, world.find, options)
    report = await run.over(*read_input(pipeline, options), Console(quiet=True))
    return report, Counter(engine.kinds)


def written(world: World, output: Path) -> list[Path]:
    return list(files_of(output, pipeline_of(world.name).kinds).values())


def rows_of(world: World, output: Path) -> list[dict[str, Any]]:
    files = written(world, output)
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
async def test_all_that_is_dropped_is_counted_and_nothing_held_out_trains(
    world: World, tmp_path: Path
) -> None:
    report, kinds = await ran(world, tmp_path / "out.jsonl")
    assert kinds.total() >= 100
    assert kinds.total() - kinds[""] >= 0.28 * kinds.total()
    assert kinds.keys() == {"", *world.kinds}

    assert report.input == LINES[world.name] + 3
    assert report.input == report.written + sum(report.dropped.values())
    assert report.dropped["bad line: is not JSON"] == 1
    assert report.dropped["bad line: is not a JSON object"] == 1
    assert report.dropped["held out"] > 0
    assert report.written > 0
    assert [number for number, _ in report.bad_lines] == [report.input - 2 + n for n in range(3)]

    assert report.calls == kinds.total()
    bad = kinds.total() - kinds[""] - kinds["contradiction"]
    assert sum(report.bad_rounds.values()) == bad
    limited = sum(n for reason, n in report.bad_rounds.items() if "rate-limited" in reason)
    truncated = sum(n for reason, n in report.bad_rounds.items() if "truncated" in reason)
    assert (limited, truncated) == (kinds["limited"], kinds["truncated"])
    assert report.prompt_tokens == 100 * (report.calls - limited)

    rows = rows_of(world, tmp_path / "out.jsonl")
    assert len(rows) == report.rows > 0
    made = [row["provenance"] for row in rows]
    assert {(own["teacher"], own["date"]) for own in made} == {("model", DATE)}
    assert json.loads((tmp_path / "out.report.json").read_text())["dropped"] == report.dropped
    titles = {title for own in made for title in own["titles"]}
    assert titles
    assert not any(map(is_held_out, titles))
    assert not any(is_held_out(row["question"]) for row in rows if row["provenance"]["written"])


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
async def test_a_run_that_was_killed_goes_on_to_the_same_output(
    world: World, tmp_path: Path
) -> None:
    """Cut the journal at several bytes, as kill -9 does, and run the rest of the rounds."""
    whole, _ = await ran(world, tmp_path / "whole.jsonl")
    journal = (tmp_path / "whole.jsonl.journal").read_bytes()
    header_ends = journal.index(b"\n") + 1
    for place in (5, header_ends, header_ends + 40, len(journal) // 2, len(journal) - 1):
        output = tmp_path / f"{place}.jsonl"
        output.with_name(f"{place}.jsonl.journal").write_bytes(journal[:place])
        done = [json.loads(line) for line in journal[:place].splitlines(keepends=True)[1:]
                if line.endswith(b"\n")]  # fmt: skip
        resumed, _ = await ran(world, output, begun=sum(each["spent"]["calls"] for each in done))
        assert resumed == whole
        for one, other in zip(
            written(world, output), written(world, tmp_path / "whole.jsonl"), strict=True
        ):
            assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("autorag", "answer: not the gold one"),
        ("hanrag", "relevance: contradicts the gold passage"),
    ],
)
async def test_what_contradicts_the_gold_is_left_out(
    name: PipelineName, shown: str, tmp_path: Path
) -> None:
    report, _ = await ran(BY_NAME[name], tmp_path / "out.jsonl")
    assert {**report.dropped, **report.lost}[shown] > 0
    assert list(read_rows_of(TrainingRow, tmp_path / "out.jsonl"))


async def test_no_row_asks_a_question_of_an_excluded_file(tmp_path: Path) -> None:
    """A whole item is not even begun; a sub-question is left out of what its item gives."""
    world = BY_NAME["hanrag"]
    await ran(world, tmp_path / "all.jsonl")
    rows = rows_of(world, tmp_path / "all.jsonl")
    direct = next(row for row in rows if row["messages"][-1]["content"].startswith("straight"))
    hop = next(row for row in rows if row["question"].startswith("Who is the composer"))
    file = tmp_path / "dev.jsonl"
    lines = [{"question": f"{row['question']} !"} for row in (direct, hop)]
    file.write_text("\n".join(map(json.dumps, lines)))

    report, _ = await ran(world, tmp_path / "out.jsonl", exclude=(file,))
    assert report.dropped["in an excluded file"] == 1
    assert report.lost["in an excluded file"] >= 2  # its route and its passages
    left = {row["question"] for row in rows_of(world, tmp_path / "out.jsonl")}
    assert not left & {direct["question"], hop["question"]}
    assert report.input == report.written + sum(report.dropped.values())


def test_an_excluded_file_must_be_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl"
    for text, problem in (('{"question": "a"}\n{}', ":2: no `question`"), ("{", ":1: is not JSON")):
        file.write_text(text)
        with pytest.raises(InvalidRequest, match=problem):
            read_questions_of([file])


async def test_what_compound_writes_teaches_the_revelator(tmp_path: Path) -> None:
    await ran(BY_NAME["compound"], tmp_path / "out.jsonl")
    rows = rows_of(BY_NAME["compound"], tmp_path / "out.jsonl")
    reading = read_by(read_questions, enumerate(rows, 1))
    assert not reading.bad
    assert [item.content.question for item in reading.items] == [row["question"] for row in rows]
    for item, row in zip(reading.items, rows, strict=True):
        outcome, asked, _ = run_by_hand(pipeline_of("hanrag"), item, [])
        assert [made.fields["task"] for made in outcome.rows] == ["route", "decompose"]
        assert all(part in target_of(outcome.rows[1]) for part in row["sub_questions"])
        assert item.source.side == "train"
        assert not asked
