"""The TypeScript example of deploy/README.md: types generated from openapi.yaml, checked, and run
by Node."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.support.live import live

ROOT = Path(__file__).parents[2]
OPTIONS = [
    "--strict",
    "--target",
    "es2022",
    "--module",
    "es2022",
    "--lib",
    "es2022,dom",
    "--moduleResolution",
    "bundler",
]


@pytest.fixture(scope="module")
def tools() -> Path:
    """The folder `.bin` of openapi-typescript and typescript."""
    folder = Path(os.environ.get("NODE_MODULES") or ROOT / "node_modules") / ".bin"
    if not (shutil.which("node") and (folder / "tsc").exists()):
        unavailable(
            "TypeScript",
            "install Node, run `npm install openapi-typescript@7 typescript@5`, and set "
            "NODE_MODULES to the folder node_modules",
        )
    return folder


async def run(*words: str | Path, cwd: Path) -> tuple[int, str]:
    """Exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 300)
    return process.returncode or 0, out.decode()


async def test_the_example_is_typed_and_runs(tools: Path, tmp_path: Path) -> None:
    """A second file asks for a field that there is none of: only that is an error."""
    readme = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    generate = re.search(r"`npx (openapi-typescript [^`]+)`", readme)
    example = re.search(r"```ts\n(.*?)```", readme, re.DOTALL)
    assert generate
    assert example
    words = generate[1].replace("openapi.yaml", str(ROOT / "openapi.yaml")).split()
    code, out = await run(tools / words[0], *words[1:], cwd=tmp_path)
    assert code == 0, out
    async with live() as server:
        text = example[1].replace("http://127.0.0.1:8000", server.url)
        assert server.url in text
        (tmp_path / "right.mts").write_text(text, encoding="utf-8")
        (tmp_path / "wrong.mts").write_text(text.replace("{ answer,", "{ reply: answer,"))
        resolution = ("--moduleResolution", "bundler")
        code, out = await run(
            tools / "tsc", *OPTIONS, *resolution, "right.mts", "wrong.mts", cwd=tmp_path
        )
        assert code != 0
        assert "Property 'reply' does not exist" in out
        assert "right.mts" not in out
        code, out = await run("node", "right.mjs", cwd=tmp_path)
    assert (code, "Vincenzo Bellini [" in out) == (0, True), out
