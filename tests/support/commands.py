"""Command lines and samples in documents. Command lines can be parsed without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from service.cli.main import app

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SHELLS = ("sh", "console", "bash")


def parsed(line: str) -> str:
    """Parse a command line as the shell and `revelator` do, and return the name of its command.

    Named files need not exist. Raises an exception that describes the error.
    """
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "revelator", line
    command: Any = get_command(app)
    name = ""
    while getattr(command, "commands", None):
        name = words.pop(0)
        command = command.commands[name]
    with pytest.MonkeyPatch.context() as patch:
        for parameter in command.params:
            info = parameter.type_descriptor.parameter_info
            for check in ("exists", "readable"):
                patch.setattr(info, check, False, raising=False)
        command.make_context(name, _own(words))
    return name


def _own(words: list[str]) -> list[str]:
    """Return the words without a redirection of the output."""
    ends = [place for place, word in enumerate(words) if word in {">", ">>"}]
    return words[: ends[0]] if ends else words


def blocks(document: Path, *kinds: str) -> Iterator[str]:
    """Yield the code blocks of these kinds in a document."""
    for kind, text in BLOCK.findall(document.read_text(encoding="utf-8")):
        if kind in kinds:
            yield text


def inline(document: Path) -> Iterator[str]:
    """Yield the inline code of a document."""
    yield from INLINE.findall(BLOCK.sub("", document.read_text(encoding="utf-8")))


def shell_lines(document: Path) -> Iterator[str]:
    """Yield the command lines in a document's shell blocks, with the parts of an `&&` separated.

    In a block with prompts, only lines with a prompt are commands. An indented line continues the
    previous one.
    """
    for text in blocks(document, *SHELLS):
        lines = re.split(r"\n(?![ \t])", re.sub(r"\\\n\s*", "", text))
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            for part in line.split("  #")[0].split(" && "):
                if part.strip() and not part.startswith("#"):
                    yield part.strip()


def commands(document: Path) -> Iterator[str]:
    """Yield the command lines of `revelator` in a document's shell blocks."""
    for line in shell_lines(document):
        for part in line.split(" | "):
            if part.startswith("revelator "):
                yield part
