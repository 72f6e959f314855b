"""What a person finds out by asking: help, examples, exit codes, completion; and colours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from service.cli.examples import EXAMPLES
from service.cli.main import app
from service.evaluation.datasets import FORMATS
from service.strategies.registry import LOOPS
from tests.support.commands import commands, inline, parsed

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", ROOT / "deploy" / "README.md"]


def names(group: object = None, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command."""
    found: list[tuple[str, ...]] = []
    for name, command in (group or get_command(app)).commands.items():  # type: ignore[attr-defined]
        own = (*path, name)
        found += names(command, own) if hasattr(command, "commands") else [own]
    return found


@pytest.mark.parametrize("words", names(), ids=" ".join)
def test_every_command_has_an_example_that_is_valid(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    example = EXAMPLES[words[-1]]
    assert f"Example: {example}" in " ".join(result.output.split())
    assert parsed(example) == words[-1]
    assert example.startswith(f"revelator {' '.join(words)}")


@pytest.mark.parametrize(("command", "extra"), [("mcp", "mcp"), ("worker", "vllm")])
def test_help_names_the_extra(command: str, extra: str) -> None:
    """An unescaped `[extra]` would be taken for markup and vanish."""
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert f"pip install '.[{extra}]'" in " ".join(result.output.split())


def test_help_names_every_format_of_datasets_and_every_loop() -> None:
    output = CliRunner().invoke(app, ["evaluate", "--help"], env={"COLUMNS": "2000"}).output
    assert f"Formats: {', '.join(FORMATS)}." in " ".join(output.split())
    assert f"Loops: {', '.join(sorted(LOOPS))}." in " ".join(output.split())


def test_the_exit_codes_are_told() -> None:
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for code in (
        "0: success",
        "1: partial success",
        "2: the command could",
        "130 and 143: interrupted",
    ):
        assert code in " ".join(output.split())


@pytest.mark.parametrize(
    ("document", "line"),
    [(document.parent.name, line) for document in DOCUMENTS for line in commands(document)],
)
def test_every_command_in_the_documents_is_valid(document: str, line: str) -> None:
    assert parsed(line)


def test_commands_in_running_text_are_there() -> None:
    """They may be without their arguments, or with some for all."""
    named = {tuple(text.split()[1:3]) for document in DOCUMENTS for text in inline(document)
             if text.startswith("revelator ")}  # fmt: skip
    known = {words[0] for words in names()} | {"--help", "--install-completion"}
    assert len(named) > 5
    assert not {words for words in named if words[0] not in known}


def test_commands_in_documents_are_found() -> None:
    found = list(commands(DOCUMENTS[0]))
    assert len(found) > 10
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parsed("revelator ask Who? --lop x")
    with pytest.raises(KeyError):
        parsed("revelator aks Who?")


def test_completion_of_a_command() -> None:
    asked = {
        "_REVELATOR_COMPLETE": "complete_bash",
        "COMP_WORDS": "revelator coll",
        "COMP_CWORD": "1",
    }
    shown = subprocess.run(
        [sys.executable, "-m", "service"], env=os.environ | asked, capture_output=True, text=True,
        check=True, timeout=200, cwd=ROOT,
    )  # fmt: skip
    assert shown.stdout.split() == ["collections"]


@pytest.mark.parametrize(("set_to", "coloured"), [(None, True), ("1", False)])
def test_no_color(set_to: str | None, coloured: bool) -> None:
    result = CliRunner().invoke(app, ["ask", " "], color=True, env={"NO_COLOR": set_to})
    assert result.exit_code == 2
    assert bool(re.search("\x1b\\[", result.output)) == coloured
