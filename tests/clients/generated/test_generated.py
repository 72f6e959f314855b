"""Clients that generators make from openapi.yaml: without a warning, compiled, and asking."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import unavailable
from tests.live.test_typescript import OPTIONS, run
from tests.support.live import live

pytestmark = pytest.mark.timeout(600)

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parents[2] / "openapi.yaml"
QUESTION: Final = "Who composed the opera Norma?"
TOLD: Final = "Vincenzo Bellini | Norma\n422\n"
# What openapi-generator says of every document of this version, of its own schemas, and of names
# that TypeScript has already.
EXPECTED: Final = (
    "OpenAPI 3.1 support is still in beta",
    "Failed to get the schema name: null",
    "model name matches existing language type",
    "Could not compute datatypeWithEnum",  # of a list of files
)


def tool(name: str, variable: str, inside: str, install: str) -> Path:
    folder = Path(os.environ.get(variable) or "none")
    if not (folder / inside).exists():
        unavailable(name, f"{install}, and set {variable} to its folder")
    return folder / inside


def generators(name: str) -> Path:
    install = f"install {HERE.relative_to(HERE.parents[2])}/python.txt into an environment"
    return tool(name, "CLIENT_GENERATORS", f"bin/{name}", install)


async def made(words: list[str | Path], folder: Path) -> str:
    """Run a program that must succeed, and return what it said."""
    code, said = await run(*words, cwd=folder)
    assert code == 0, said
    return said


async def generate(language: str, folder: Path, *options: str) -> None:
    """Generate a client with openapi-generator."""
    for needed in ("java", "go" if language == "go" else "node"):
        if not shutil.which(needed):
            unavailable(needed, f"install {needed}")
    parts = ",".join(f"{part}=false" for part in ("apiTests", "modelTests", "apiDocs", "modelDocs"))
    said = await made(
        [generators("openapi-generator-cli"), "generate", "-g", language, "-i", DOCUMENT,
         "-o", folder / "revelator", "--global-property", parts, *options],
        folder,
    )  # fmt: skip
    loud = [line for line in said.splitlines() if "WARN" in line or "ERROR" in line]
    assert not [line for line in loud if not any(each in line for each in EXPECTED)]


async def asked(words: list[str | Path], folder: Path) -> None:
    """Ask a question, and one that is refused."""
    async with live() as service:
        assert await made([*words, service.url, QUESTION], folder) == TOLD


async def test_python(tmp_path: Path) -> None:
    program = generators("openapi-python-client")
    folder = tmp_path / "revelator"
    said = await made(
        [program, "generate", "--path", DOCUMENT, "--meta", "none", "--output-path", folder],
        tmp_path,
    )
    assert "warning" not in said.lower()
    shutil.copy(HERE / "ask.py", tmp_path)
    python = program.parent / "python"
    await made([python, "-m", "compileall", "-q", folder], tmp_path)
    await asked([python, "ask.py"], tmp_path)


async def test_go(tmp_path: Path) -> None:
    await generate("go", tmp_path, "--additional-properties=packageName=revelator,withGoMod=false")
    folder = tmp_path / "revelator"
    (folder / "go.mod").write_text("module revelator\n\ngo 1.21\n")
    (folder / "ask").mkdir()
    shutil.copy(HERE / "ask.go", folder / "ask")
    await made(["go", "vet", "./..."], folder)
    await made(["go", "build", "-o", "asking", "./ask"], folder)
    await asked([folder / "asking"], folder)


async def test_typescript(tmp_path: Path) -> None:
    install = "run `npm install openapi-typescript@7 typescript@5`"
    compiler = tool("TypeScript", "NODE_MODULES", ".bin/tsc", install)
    await generate("typescript-fetch", tmp_path)
    shutil.copy(HERE / "ask.ts", tmp_path)
    await made([compiler, *OPTIONS, "--module", "commonjs", "--moduleResolution", "node10",
                "ask.ts"], tmp_path)  # fmt: skip
    await asked(["node", "ask.js"], tmp_path)
