"""`revelator evaluate --ray`: the same rows as without, also when a worker is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.evaluation.rows import Row, read_rows
from tests.conftest import unavailable
from tests.stubs.openai_server import StubServer

ROOT = Path(__file__).parents[2]
OWN = {"ms", "wall_ms", "queue_ms", "answer_id"}  # of each time that a question is asked
MARK = "TEST_OF_RAY"
CONFIG = """
[engines.default]
kind = "openai"
urls = ["{url}"]
[retrieval]
embedding_model = "hashing"
"""


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    if importlib.util.find_spec("ray") is None:
        unavailable("Ray", "install the extra `ray`")


async def service(folder: Path, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "service", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), MARK: str(folder)}
    with anyio.fail_after(380):
        done = await anyio.run_process(command, cwd=folder, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4_000:]


def workers(folder: Path) -> list[int]:
    """The processes of this test in which a question is answered."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            ours = f"{MARK}={folder}".encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::Answering") and ours:
            found.append(int(process.name))
    return found


def plain(folder: Path) -> dict[Any, dict[str, Any]]:
    return {
        row.key: {f.name: getattr(row, f.name) for f in fields(Row) if f.name not in OWN}
        for row in read_rows(folder)
    }


async def test_the_rows_are_the_same_though_a_worker_dies(tmp_path: Path) -> None:
    killed: list[int] = []

    def reply(body: dict[str, Any]) -> str:
        if not killed and (found := workers(tmp_path)):
            killed.extend(found)
            os.kill(found[0], signal.SIGKILL)
        return "Vincenzo Bellini"

    passages = [
        {"id": f"p{n}", "title": f"Opera {n}", "text": f"Opera {n} is by Vincenzo Bellini."}
        for n in range(4)
    ]
    questions = [
        {"id": f"q{n}", "question": f"Who wrote Opera {n}?", "answer": "Vincenzo Bellini"}
        for n in range(4)
    ]
    for name, rows in (("corpus", passages), ("set", questions)):
        lines = "\n".join(map(json.dumps, rows))
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    async with StubServer(reply=reply) as server:
        (tmp_path / "revelator.toml").write_text(CONFIG.format(url=server.url), encoding="utf-8")
        await service(tmp_path, "ingest", "corpus.jsonl", "--collection", "c", "--data", "data")
        asked = ("evaluate", "set.jsonl", "--methods", "one_retrieval", "--collection", "c",
                 "--data", "data", "--concurrency", "2")  # fmt: skip
        await service(tmp_path, *asked, "--out", "plain")
        await service(tmp_path, *asked, "--out", "ray", "--limit", "1")  # the rest on Ray
        assert not killed
        await service(tmp_path, *asked, "--out", "ray", "--ray", "local")
    assert len(killed) == 1
    rows = plain(tmp_path / "plain")
    assert len(rows) == 4
    assert all(row["scores"]["em"] == 1 and row["retrieved"] for row in rows.values())
    assert plain(tmp_path / "ray") == rows
    assert not workers(tmp_path)
