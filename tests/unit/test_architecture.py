"""Imports point one way, and the heavy ones wait until they are needed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "service"

# A layer may import itself and what stands to its left.
LAYERS = (
    ("errors", "concurrency", "text", "grounding", "domain", "offline"),
    ("events", "budget", "settings", "locking", "tls", "connections"),
    ("prompting", "generation", "retrieval", "tagging", "labelling", "routing"),
    ("calling", "citing", "evidence", "folding", "inquiry", "drafting", "telemetry"),
    ("revelator",),
    ("loops",),
    ("handlers",),
    ("answering",),
    ("runtime",),
    ("evaluation", "api", "terminal", "training", "synthesis"),
    ("serving", "asking", "checking", "banner"),
    ("cli_options",),
    ("cli_collections", "cli_synthesis"),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# What may name a concrete engine or store.
OPENERS = {"runtime", "generation", "retrieval"}
CONCRETE = (
    "service.generation.openai",
    "service.generation.local",
    "service.generation.embedded",
    "service.generation.vllm",
    "service.retrieval.stores.tantivy_store",
    "service.retrieval.stores.qdrant_edge_store",
    "service.retrieval.stores.elastic_store",
    "service.retrieval.stores.qdrant_store",
)


def modules() -> list[Path]:
    return sorted(SERVICE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SERVICE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("service.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SERVICE)))
def test_imports_point_one_way(path: Path) -> None:
    own = package_of(path)
    if own == "__init__":
        return
    for name in imports_of(path):
        other = name.split(".")[1]
        assert RANK[other] <= RANK[own], f"{path.name} of {own} must not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SERVICE)))
def test_only_openers_name_implementations(path: Path) -> None:
    if package_of(path) not in OPENERS:
        concrete = {name for name in imports_of(path) if name.startswith(CONCRETE)}
        assert not concrete, f"open {concrete} in service/runtime.py instead"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SERVICE)))
def test_files_stay_under_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


def test_the_command_line_and_the_app_import_nothing_heavy() -> None:
    heavy = (
        "elasticsearch qdrant_client torch transformers numpy tantivy qdrant_edge aiohttp ray "
        "pyarrow onnxruntime"
    )
    program = (
        "import sys, service.cli, service.api.app; "
        f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.skipif(shutil.which("git") is None, reason="git lists the tracked files")
def test_the_top_level_is_as_designed() -> None:
    allowed = {
        "pyproject.toml", "service", "deploy", "tests", "docker-compose.yml", "openapi.yaml",
        "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE",
    }  # fmt: skip
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= allowed
