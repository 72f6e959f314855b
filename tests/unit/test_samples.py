"""Samples of settings, names of settings, addresses and programs in the documents are right."""

from __future__ import annotations

import json
import os
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
import yaml

from service.api.app import create_app
from service.core.domain import RoleName
from service.core.metrics import Metrics
from service.core.settings import Settings, load_settings
from service.core.settings.__main__ import render
from service.core.settings.loading import PREFIX
from tests.support.commands import blocks, inline, parsed

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / "deploy").glob("*.md"),
    *(ROOT / "service").rglob("*.md"),
]
INLINE = sorted({text for document in DOCUMENTS for text in inline(document)})
COMMENTED = re.compile(r"^# (?=\[|[a-z_]+ = )", re.MULTILINE)
SETTING = re.compile(r"[a-z_]+(\.[a-z_*]+)+")
VARIABLE = re.compile(rf"({PREFIX}[A-Z_]+)=(\S+)")
OTHERS = {f"{PREFIX}{name}" for name in ("REAL", "SHARED", "CI_CACHE")}  # of the tests


@pytest.fixture(autouse=True)
def _nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def loaded(text: str) -> Settings:
    Path("revelator.toml").write_text(text, encoding="utf-8")
    return load_settings()


@pytest.mark.parametrize(
    "text", [text for document in DOCUMENTS for text in blocks(document, "toml")]
)
def test_a_settings_file(text: str) -> None:
    """As it stands, and with what is commented out."""
    given = tomllib.loads(text)
    assert loaded(text).model_dump(include=set(given), exclude_unset=True).keys() == given.keys()
    Path("tenants.toml").touch()
    assert loaded(COMMENTED.sub("", text))


@pytest.mark.parametrize("text", [text for text in INLINE if SETTING.match(text) and " = " in text])
def test_one_setting(text: str) -> None:
    assert loaded(text.replace(".*.", ".default."))


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [VARIABLE.fullmatch(text) for text in INLINE]
    given = {each[1]: each[2] for each in found if each and each[1] not in OTHERS}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert given
    assert load_settings() != Settings()


def names_of_settings() -> set[str]:
    """Each setting and each section. Where a name is chosen there is `NAME`."""
    names: set[str] = set()
    for part in render().split("\n## ")[1:]:
        section = re.match(r"`\[(.*)\]`", part)
        for name in re.findall(r"^\| `(\w+)`", part, re.MULTILINE):
            words = [*(section[1].split(".") if section else []), name]
            names |= {".".join(words[:end]) for end in range(1, len(words) + 1)}
    return names


def test_settings_that_are_named_are_there() -> None:
    """A `*` stands for any; a secret has a setting for its file, too."""
    names = names_of_settings()
    names |= {
        name.replace("roles.NAME", f"roles.{role}") for name in names for role in get_args(RoleName)
    }
    known = names | {f"{name}_file" for name in names}
    named = {text for text in INLINE if SETTING.fullmatch(text) and text.split(".")[0] in names}
    named = {name for name in named if not name.endswith(".py")}
    named = {re.sub(r"^roles\.\w+", "roles.*", name) for name in named}
    patterns = {name: re.compile(name.replace(".", r"\.").replace("*", ".*")) for name in named}
    assert len(named) > 30
    assert not [name for name in named if not any(map(patterns[name].fullmatch, known))]


def test_addresses_are_those_of_the_api() -> None:
    paths = create_app(Settings()).openapi()["paths"]
    found = [re.fullmatch(r"(GET|POST|PUT|DELETE) (/[^?…]*)(\?.*)?", text) for text in INLINE]
    named = {(each[1].lower(), each[2]) for each in found if each}
    assert len(named) > 4
    assert not {(method, path) for method, path in named if method not in paths.get(path, {})}


def test_programs_of_python_are_there() -> None:
    found = [re.match(r"python -m (tests\.[\w.]+)", text) for text in INLINE]
    named = {each[1] for each in found if each}
    assert len(named) > 8
    assert not [name for name in named if find_spec(name) is None]


def test_how_agents_start_it() -> None:
    [text] = blocks(ROOT / "deploy" / "README.md", "json")
    server = json.loads(text)["mcpServers"]["revelator"]
    assert parsed(" ".join([server["command"], *server["args"]])) == "mcp"


def test_the_rule_that_scales_is_of_a_metric_that_there_is() -> None:
    [text] = blocks(ROOT / "deploy" / "README.md", "yaml")
    [rule] = yaml.safe_load(text)["rules"]["custom"]
    metric = rule["seriesQuery"].partition("{")[0]
    assert metric == rule["name"]["as"]
    assert f"# TYPE {metric} gauge" in Metrics().render().decode()
