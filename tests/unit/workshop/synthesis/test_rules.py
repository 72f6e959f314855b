"""Rows made by rules over passages, without a teacher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from service.core.errors import InvalidRequest
from service.core.settings import Settings
from service.evaluation.datasets import load_dataset
from service.workshop.facts.rows import FilterRow, LabelerRow, read_rows, read_rows_of
from service.workshop.facts.splits import Split, is_held_out
from service.workshop.synthesis.command import SynthesisOptions, synthesize_file
from service.workshop.synthesis.pipelines import PipelineName
from tests.conftest import need
from tests.unit.workshop.synthesis.stepping import KNOWN

pytestmark = pytest.mark.anyio
FIRST = ("Ada", "Bela", "Cyra", "Dora", "Egon", "Fritz", "Gita", "Hans")
LAST = ("Ambler", "Brenner", "Calder", "Dorset", "Elbing")
MONTHS = ("January", "March", "May", "July", "August", "October", "November", "December")
PEOPLE = [f"{first} {last}" for last in LAST for first in FIRST]


def corpus() -> list[dict[str, str]]:
    """Forty directors and a film of each."""
    rows = []
    for n, name in enumerate(PEOPLE):
        born = f"{1 + n % 28} {MONTHS[n % 8]} {1900 + n}"
        nation = ("American", "French", "German")[n % 3]
        text = f"{name} (born {born}) is a {nation} film director. {name} was born in Ulm."
        rows.append({"id": f"p{n}", "title": name, "text": text})
        film = f"Red {name.split()[1]} {n}"
        text = f"{film} is a {1930 + n} {nation} drama film directed by {name}."
        rows.append({"id": f"f{n}", "title": film, "text": text})
    return rows


async def make(
    name: PipelineName, folder: Path, rows: Sequence[Any] | None = None, **changed: Any
) -> tuple[Any, Path]:
    given, output = folder / "passages.jsonl", folder / "rows.jsonl"
    lines = corpus() if rows is None else rows
    given.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    settings: dict[str, Any] = {"teacher": "rules", "limit": 40, "date": "2026-01-31"}
    options = SynthesisOptions(given, output, **(settings | changed))
    report = await synthesize_file(
        Settings(data_dir=folder / "data"), name, options, Console(quiet=True)
    )
    return report, output


@pytest.mark.parametrize("side", ["train", "test"])
@pytest.mark.parametrize("name", ["compound", "hanrag", "autorag"])
async def test_rows_of_one_side(name: PipelineName, side: Split, tmp_path: Path) -> None:
    report, output = await make(name, tmp_path, side=side)
    assert report.input == 40 == report.written + sum(report.dropped.values())
    assert report.written > 10
    assert report.calls == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == report.rows
    if side == "train":
        assert not any(is_held_out(t) for row in rows for t in row["provenance"]["titles"])
    else:  # what leads to the answer may be of the other side
        assert all(is_held_out(row["provenance"]["answer_title"]) for row in rows)
    assert {row["provenance"]["teacher"] for row in rows} == {"rules"}


@pytest.mark.parametrize("side", ["train", "test"])
@pytest.mark.parametrize("name", ["hanrag", "autorag"])
async def test_training_reads_them(name: PipelineName, side: Split, tmp_path: Path) -> None:
    report, output = await make(name, tmp_path, side=side)
    rows = list(read_rows(output, side))
    assert len(rows) == report.rows
    tasks = {row.task for row in rows}
    routed = {"route", "decompose", "refine", "relevance", "ending"}
    assert tasks == ({"autorag"} if name == "autorag" else routed)


async def test_the_evaluation_reads_compound_questions(tmp_path: Path) -> None:
    _, output = await make("compound", tmp_path, side="test")
    golds = load_dataset(output)
    assert {gold.route for gold in golds} == {"compound"}
    assert all(len(gold.parts) > 1 and gold.supporting for gold in golds)


async def test_rows_of_labeler_and_filter(tmp_path: Path) -> None:
    need("onnxruntime")
    report, output = await make("efficientrag", tmp_path, limit=20)
    labeled = list(read_rows_of(LabelerRow, output.with_name("rows.labeler.jsonl")))
    filtered = list(read_rows_of(FilterRow, output.with_name("rows.filter.jsonl")))
    assert len(labeled) + len(filtered) == report.rows
    assert {row.tag for row in labeled} == {"continue", "terminate", "finish"}
    assert all(any(row.labels) for row in filtered)


async def test_the_same_seed_gives_the_same_rows(tmp_path: Path) -> None:
    made = []
    for run, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / run).mkdir()
        _, output = await make("hanrag", tmp_path / run, seed=seed)
        made.append(output.read_bytes())
    assert made[0] == made[1] != made[2]


async def test_bad_lines_are_counted(tmp_path: Path) -> None:
    rows = [*corpus(), {"id": "x", "title": "No text"}, ["a list"], corpus()[0]]
    report, _ = await make("compound", tmp_path, rows)
    assert report.bad_lines == [
        (81, "no `text`"), (82, "no JSON object"), (83, "id of an earlier line"),
    ]  # fmt: skip
    assert report.input == 43
    assert report.corpus["passages"] == 80


PLAIN = [{"id": str(n), "title": name, "text": "It rains."} for n, name in enumerate(PEOPLE)]
SINGLE = [{"id": "1", "title": KNOWN, "text": f"{KNOWN} was founded in 1913."}]


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("hanrag", PLAIN, "no fact was found (passages 40, of this side"),
        ("compound", SINGLE, "no subject has two facts (passages 1, of this side 1, facts 1"),
        ("hanrag", [], "has no lines"),
    ],
)
async def test_a_corpus_without_usable_facts(
    name: PipelineName, rows: list[Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest) as failure:
        await make(name, tmp_path, rows)
    assert said in failure.value.detail
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("name", ["hanrag", "autorag"])
async def test_one_fact_is_enough_for_single_questions(name: PipelineName, tmp_path: Path) -> None:
    report, _ = await make(name, tmp_path, SINGLE)
    assert report.written > 1
    assert report.dropped["same question again"] == 40 - report.written
