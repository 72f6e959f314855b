"""What a Dockerfile says of its last stage: variables, port, user, command."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.helm import ROOT

FOLDER = ROOT / "deploy" / "docker"


@dataclass
class Image:
    variables: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        words: list[str] = json.loads(self.said.get("ENTRYPOINT") or self.said["CMD"])
        return words


def image(name: str) -> Image:
    """The image that `deploy/docker/NAME` makes; later instructions win."""
    found = Image()
    for instruction, rest in instructions(FOLDER / name):
        if instruction == "FROM":
            found = Image()
        if instruction == "ENV":
            found.variables |= dict(word.split("=", 1) for word in shlex.split(rest))
        found.said[instruction] = rest
    return found


def instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in whole.splitlines() if line.strip()]  # type: ignore[misc]
