"""`revelator evaluate --trace`, then `replay` and `explain` from the files alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.unit.evaluation.conftest import opened  # noqa: F401
from tests.unit.evaluation.evaluating import Engine, Opened, dataset


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    return result.exit_code, result.output


@pytest.fixture
def traces(tmp_path: Path, opened: Opened) -> Path:  # noqa: F811
    opened(Engine())
    file, folder = dataset(tmp_path / "d.jsonl", "Rome", "Oslo"), tmp_path / "traces"
    code, shown = run("evaluate", file, "--methods", "single", "--trace", folder)
    assert code == 0, shown
    return folder


def test_every_question_is_kept_and_replayed(traces: Path) -> None:
    files = sorted(traces.rglob("*.jsonl"))
    assert [str(file.relative_to(traces)) for file in files] == [
        "d/single/1.jsonl", "d/single/2.jsonl",
    ]  # fmt: skip
    for file in files:
        lines = file.read_bytes().decode().split("\n")
        assert run("replay", file, "--events") == (0, "\n".join(lines[1:]))
        shown = run("replay", file)[1].splitlines()
        assert shown[0].startswith("Route: single, ")
        assert shown[-1].startswith("1 retrieval, ")
        code, body = run("replay", file, "--body")
        ready = next(json.loads(line) for line in lines[1:] if '"event":"answer"' in line)
        assert (code, json.loads(body)) == (0, ready["body"])


def test_a_folder_is_explained(traces: Path) -> None:
    code, shown = run("explain", traces)
    assert code == 0
    assert "d/single/1: Question 1 of d?\n" in shown
    assert "  the answer is right\n    answer: Rome\n" in shown
    assert "  error: retrieval: gold text not found literally in " in shown
    assert "    query: Question 2 of d?\n" in shown
    code, shown = run("explain", traces / "d" / "single" / "1.jsonl")
    assert (code, shown.count("d/single/")) == (0, 1)


def test_a_bad_trace_does_not_hide_the_others(traces: Path) -> None:
    bad = traces / "d" / "single" / "1.jsonl"
    bad.write_bytes(b"{}\n")
    result = CliRunner().invoke(app, ["explain", str(traces)])
    assert result.exit_code == 2
    assert result.stdout.startswith("d/single/2: Question 2 of d?\n")
    assert result.stderr.startswith(f"revelator: {bad}:1: is not the first line of a trace")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_a_trace_that_was_cut_short_is_one_line_and_exit_code_2(traces: Path, command: str) -> None:
    file = traces / "d" / "single" / "1.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    lines = len(file.read_bytes().split(b"\n"))
    code, shown = run(command, file)
    assert code == 2
    assert shown == f"revelator: {file}:{lines}: is truncated: the line has no end\n"
    assert run(command, traces / "gone.jsonl")[0] == 2
