"""`revelator synthesize` as users run it: a teacher over a real socket, real stores, kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from service.core.settings import EngineSettings, RetrievalSettings, Settings
from service.runtime import open_runtime
from service.workshop.rows import FilterRow, LabelerRow, read_rows_of
from service.workshop.synthesis.command import SynthesisOptions, synthesize_file
from tests.stubs.openai_server import StubServer
from tests.support.documents import ingest_documents
from tests.unit.workshop.synthesis.towns import TOWNS, composer_of, hops_of, work_of
from tests.unit.workshop.synthesis.worlds import (
    compound_lines,
    compound_teacher,
    efficientrag_teacher,
)

DATE = "2026-01-31"


def asked(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"]).rpartition("\n\n")[2]


def settings_of(folder: Path, server: StubServer) -> Settings:
    teacher = EngineSettings(kind="openai", urls=[server.url], model="stub-model")
    return Settings(
        data_dir=folder / "data",
        engines={"default": EngineSettings(model="not asked"), "big": teacher},
        retrieval=RetrievalSettings(embedding_model="hashing"),
    )


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


async def fill(settings: Settings, name: str) -> None:
    """All works and their composers, as a collection in the real embedded stores."""
    passages = [of(n) for n in range(len(TOWNS)) for of in (work_of, composer_of)]
    documents = [{"id": p.passage_id, "title": p.title, "text": p.text} for p in passages]
    async with open_runtime(settings) as runtime:
        collections = runtime.retrieval.collections
        await collections.create(name)
        await ingest_documents(documents, name, collections)


async def test_efficientrag_with_a_teacher_over_http_and_real_stores(tmp_path: Path) -> None:
    items = write_lines(tmp_path / "items.jsonl", [hops_of(n) for n in range(12)])
    async with StubServer(reply=lambda body: efficientrag_teacher(asked(body))) as server:
        server.failure, server.failures, server.retry_after = 429, 1, "1"
        settings = settings_of(tmp_path, server)
        await fill(settings, "works")
        options = SynthesisOptions(
            items, tmp_path / "o.jsonl", "big", collection="works", date=DATE
        )
        report = await synthesize_file(settings, "efficientrag", options, Console(quiet=True))
    labeled = list(read_rows_of(LabelerRow, tmp_path / "o.labeler.jsonl"))
    filtered = list(read_rows_of(FilterRow, tmp_path / "o.filter.jsonl"))
    assert report.spent.bad == {"decompose: rate-limited": 1}
    assert report.input == 12 == report.written + sum(report.dropped.values())
    assert len(filtered) == report.written > 1
    assert [row.tag for row in labeled].count("terminate") == 2 * report.written
    assert {row.provenance.teacher for row in labeled} == {"stub-model"}


def command(folder: Path, output: str) -> list[str]:
    words = [sys.executable, "-m", "service", "synthesize", "compound", "--teacher", "big"]
    words += ["--input", str(folder / "items.jsonl"), "--output", str(folder / output)]
    return [*words, "--config", str(folder / "revelator.toml"), "--concurrency", "2"]


async def start(folder: Path, output: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command(folder, output),
        env={k: v for k, v in os.environ.items() if not k.startswith("REVELATOR_")}
        | {"REVELATOR_DATA_DIR": str(folder / "data")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_kill_9_and_the_same_command_give_what_one_run_gives(tmp_path: Path) -> None:
    write_lines(tmp_path / "items.jsonl", compound_lines()[:30])
    async with StubServer(reply=lambda body: compound_teacher(asked(body))) as server:
        (tmp_path / "revelator.toml").write_text(
            f'[engines.big]\nkind = "openai"\nurls = ["{server.url}"]\nmodel = "m"\n'
            '[engines.default]\nkind = "embedded"\n'
        )
        whole = await start(tmp_path, "whole.jsonl")
        said, _ = await whole.communicate()
        assert whole.returncode == 0, said.decode()

        calls, server.token_delay = server.requests, 0.002
        killed = await start(tmp_path, "killed.jsonl")
        journal = tmp_path / "killed.jsonl.journal"
        while not journal.is_file() or len(journal.read_bytes().splitlines()) < 6:
            assert killed.returncode is None
            await asyncio.sleep(0.01)  # until some items are done
        killed.send_signal(signal.SIGKILL)
        await killed.communicate()
        assert not (tmp_path / "killed.jsonl").exists()

        server.token_delay, before = 0.0, server.requests
        again = await start(tmp_path, "killed.jsonl")
        said, _ = await again.communicate()
        assert again.returncode == 0, said.decode()
    assert 0 < server.requests - before < calls
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    one, other = (
        json.loads((tmp_path / f"{name}.report.json").read_text()) for name in ("killed", "whole")
    )
    for counted in ("input", "written", "dropped", "rows", "lost"):
        assert one[counted] == other[counted]
