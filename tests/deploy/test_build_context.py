"""What the Dockerfiles copy is part of the build context, which `.dockerignore` cuts down."""

from __future__ import annotations

import tomllib
from pathlib import PurePosixPath

import pytest

from tests.deploy.helm import ROOT
from tests.deploy.images import FOLDER, instructions

DOCKERFILES = sorted(path.name for path in FOLDER.glob("*Dockerfile"))


def sources(name: str) -> list[str]:
    """The paths that a Dockerfile copies from the build context."""
    copied = [rest.split() for word, rest in instructions(FOLDER / name) if word == "COPY"]
    return [path for words in copied if words[0][:7] != "--from=" for path in words[:-1]]


def context() -> set[str]:
    """The paths that `.dockerignore`, which ignores everything first, takes back."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and line[0] != "#"]
    assert rules[0] == "*"
    return {line[1:] for line in rules if line[0] == "!"}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_is_in_the_context(name: str) -> None:
    assert sources(name)
    assert set(sources(name)) <= context()
    assert all((ROOT / path).exists() for path in sources(name))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_package_can_be_built_of_what_is_copied(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for path in (project["readme"], *project["license-files"]):
        assert str(PurePosixPath(path)) in sources(name)
