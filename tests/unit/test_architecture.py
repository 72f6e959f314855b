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

# A layer may import itself and what stands above it. A part is a folder or a file below service/.
LAYERS = (
    ("core", "text"),
    ("prompts", "engines", "vllm_plugin", "retrieval", "encoders"),
    ("answer", "telemetry"),
    ("strategies", "client", "client_wire", "options"),
    ("runtime",),
    ("checks",),
    ("api", "evaluation", "workshop"),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# The same within retrieval.
RETRIEVAL = (
    ("embedding",),
    ("base", "documents", "reports"),
    ("stores",),
    ("collections",),
    ("search", "ingest"),
    ("factory",),
)

# What may name a concrete engine or store.
OPENERS = {"runtime", "engines", "retrieval"}
CONCRETE = (
    "service.engines.openai",
    "service.engines.local",
    "service.engines.embedded",
    "service.engines.vllm",
    "service.retrieval.stores.tantivy_store",
    "service.retrieval.stores.qdrant_edge_store",
    "service.retrieval.stores.elastic_store",
    "service.retrieval.stores.qdrant_store",
)

# What the plugin, which runs in vLLM's environment, may use of the rest.
SHARED_WITH_VLLM = {
    "service.engines.attention",
    "service.engines.encoding",
    "service.engines.output",
    "service.engines.signals",
}


def parts() -> dict[Path, str]:
    """Every module with the part that it belongs to, but for the package's own `__init__.py`."""
    found = sorted(path.relative_to(SERVICE) for path in SERVICE.rglob("*.py"))
    return {path: path.parts[0].removesuffix(".py") for path in found if str(path) != "__init__.py"}


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse((SERVICE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("service.")}


def test_imports_point_one_way() -> None:
    upwards = [
        f"{path} imports {name}"
        for path, own in parts().items()
        for name in sorted(imports_of(path))
        if RANK[name.split(".")[1]] > RANK[own]
    ]
    assert not upwards


def test_imports_within_retrieval_point_one_way() -> None:
    rank = {name: number for number, layer in enumerate(RETRIEVAL) for name in layer}
    upwards = [
        f"{path} imports {name}"
        for path, own in parts().items()
        if own == "retrieval" and len(path.parts) > 1 and path.name != "__init__.py"
        for name in sorted(imports_of(path))
        if name.startswith("service.retrieval.")
        and rank[name.split(".")[2]] > rank[path.parts[1].removesuffix(".py")]
    ]
    assert not upwards


def test_only_openers_name_implementations() -> None:
    concrete = [
        f"{path} imports {name}: open it in service/runtime.py"
        for path, own in parts().items()
        if own not in OPENERS
        for name in sorted(imports_of(path))
        if name.startswith(CONCRETE)
    ]
    assert not concrete


def test_the_vllm_plugin_shares_only_the_wire() -> None:
    used: set[str] = set()
    users: set[str] = set()
    for path, own in parts().items():
        for name in imports_of(path):
            inside = name.startswith("service.vllm_plugin")
            if own == "vllm_plugin" and not inside:
                used.add(name)
            elif own != "vllm_plugin" and inside:
                users.add(f"{path} imports {name}")
    assert used == SHARED_WITH_VLLM
    assert users == {
        "engines/vllm_command.py imports service.vllm_plugin",
        "engines/vllm.py imports service.vllm_plugin",
    }


def test_what_the_vllm_plugin_shares_brings_little_with_it() -> None:
    brought, new = set(SHARED_WITH_VLLM), set(SHARED_WITH_VLLM)
    while new:
        files = [Path(*name.split(".")[1:]).with_suffix(".py") for name in new]
        new = {name for file in files for name in imports_of(file)} - brought
        brought |= new
    own = {f"service.core.{name}" for name in ("concurrency", "domain", "errors")}
    assert brought - SHARED_WITH_VLLM == own | {"service.engines.base"}


def test_http_sessions_are_opened_in_one_place() -> None:
    openers = [str(path) for path in parts() if "ClientSession(" in (SERVICE / path).read_text()]
    assert openers == ["core/connections.py"]


def test_functions_stay_under_40_lines() -> None:
    """Without their docstrings."""
    long = []
    for path in parts():
        for node in ast.walk(ast.parse((SERVICE / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[ast.get_docstring(node) is not None :]
                if body and (node.end_lineno or 0) - body[0].lineno >= 40:
                    long.append(f"{path}: {node.name}")
    assert not long


def test_files_stay_under_600_lines() -> None:
    long = [str(path) for path in parts() if len((SERVICE / path).read_text().splitlines()) >= 600]
    assert not long


def test_the_command_line_and_the_app_import_nothing_heavy() -> None:
    heavy = (
        "elasticsearch qdrant_client torch transformers numpy tantivy qdrant_edge aiohttp ray "
        "pyarrow onnxruntime llguidance"
    )
    program = (
        "import sys, service.cli.main, service.api.app, service.engines.factory; "
        "import service.engines.local, service.engines.embedded; "
        f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.skipif(shutil.which("git") is None, reason="git lists the tracked files")
def test_the_top_level_is_as_designed() -> None:
    allowed = {
        "pyproject.toml", "service", "deploy", "tests", "docker-compose.yml", "openapi.yaml",
        "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE",
    }  # fmt: skip
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= allowed
