"""`revelator evaluate --url`: the same rows from a running server, by its event stream."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
import anyio.to_thread
import pytest
from rich.console import Console

from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    InvalidRequest,
    LoopUnavailable,
    NotFound,
)
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.evaluation.command import EvaluationOptions, evaluate_datasets
from service.evaluation.rows import Row, read_rows
from tests.support import live as live_support
from tests.support.live import answering, config
from tests.support.scripted import ScriptStep, render

# The command, which may block its own event loop, shares the process of the server.
live = partial(live_support.live, watched=False)


def dataset(path: Path, count: int = 4) -> Path:
    rows = [
        {"question": f"Who wrote opera {n}?", "answer": "Vincenzo Bellini"} for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


async def evaluated(file: Path, url: str, settings: Settings | None = None, **options: Any) -> int:
    """The command in a thread and an event loop of its own, as in a process of its own."""
    given = EvaluationOptions([str(file)], url=url, **{"methods": ["single", "auto"], **options})
    screen = Console(file=io.StringIO())

    async def work() -> int:
        return await evaluate_datasets(settings or Settings(), given, screen)

    return await anyio.to_thread.run_sync(partial(anyio.run, work))


def told(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted(
        (row.method, row.id, row.route, row.scores["em"], row.llm_calls, row.retrieved, row.error)
        for row in rows
    )


async def test_the_rows_of_a_server(tmp_path: Path) -> None:
    file, out = dataset(tmp_path / "d.jsonl"), tmp_path / "out"
    async with live() as server:
        assert await evaluated(file, server.url, out=out, concurrency=3) == 0
        rows = read_rows(out)
        assert len(rows) == 8
        assert {row.scores["em"] for row in rows} == {1}
        assert {row.retrieved for row in rows} == {rows[0].retrieved}
        assert rows[0].retrieved > 0
        assert all(row.ms is not None and row.queue_ms is not None for row in rows)
        assert all(row.wall_ms is not None and row.ms is not None and row.wall_ms > row.ms / 2
                   for row in rows)  # fmt: skip
        assert await server.metric("revelator_questions_in_progress") == 0
        again = told(rows)
        assert await evaluated(file, server.url, out=out) == 0
        assert told(read_rows(out)) == again
    run = json.loads((out / "run.json").read_bytes())
    assert run["common"]["server"] == server.url
    assert "settings" not in run["common"]


async def test_what_the_server_refuses_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    file = dataset(tmp_path / "d.jsonl")
    async with live() as server:
        with pytest.raises(LoopUnavailable, match="'dragin' cannot run"):
            await evaluated(file, server.url, methods=["dragin"])
        with pytest.raises(InvalidRequest, match="--engine cannot be combined with --url"):
            await evaluated(file, server.url, engine="default")
    with pytest.raises(EngineFailure, match="cannot be reached"):
        await evaluated(file, server.url)


async def test_a_server_with_keys(tmp_path: Path) -> None:
    file, keys = dataset(tmp_path / "d.jsonl"), ["secret"]
    own = Settings.model_validate({"server": {"keys": keys}})
    async with live(settings=config(server={"keys": keys})) as server:
        with pytest.raises(ConfigurationError, match="by --key or REVELATOR_KEY"):
            await evaluated(file, server.url)
        assert await evaluated(file, server.url, own) == 0


async def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    """One question may run and four may wait, and ten come at the same time."""
    file, out = dataset(tmp_path / "d.jsonl", 10), tmp_path / "out"
    settings = config(server={"max_running": 1})
    async with live(answering(delay=0.05), settings=settings) as server:
        assert await evaluated(file, server.url, out=out, concurrency=10, methods=["single"]) == 0
        assert await server.metric('revelator_rejected_total{reason="busy"}') > 0
    rows = read_rows(out)
    assert [row.error for row in rows] == [None] * 10
    assert max(row.queue_ms or 0 for row in rows) > 0


async def test_a_failure_at_the_server_is_a_row(tmp_path: Path) -> None:
    file, out = dataset(tmp_path / "d.jsonl", 2), tmp_path / "out"

    def breaks(request: object) -> str:
        raise EngineFailure("gone")

    script = [
        ScriptStep(match="Task: relevance", reply="true", times=None),
        ScriptStep(match="opera 1", reply=breaks, times=None),
        ScriptStep(reply="Vincenzo Bellini", times=None),
    ]
    async with live(script) as server:
        assert await evaluated(file, server.url, out=out, methods=["single"]) == 1
    assert [(row.error or "").split(":")[3:4] for row in read_rows(out)] in (
        [[], ["engine-unavailable"]], [["engine-unavailable"], []],
    )  # fmt: skip


async def test_collections_of_the_server(tmp_path: Path) -> None:
    file, out = dataset(tmp_path / "d.jsonl", 1), tmp_path / "out"
    async with live(settings=config(tmp_path / "data"), own_stores=True) as server:
        with pytest.raises(NotFound, match="absent"):
            await evaluated(file, server.url, collections=["absent"])
        assert await evaluated(file, server.url, out=out, methods=["single"]) == 0
    run = json.loads((out / "run.json").read_bytes())
    assert run["datasets"]["d"]["collection"]["name"] == "sample"
    assert run["datasets"]["d"]["collection"]["passages"] > 0


async def test_a_killed_command_goes_on_and_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    count, at_once = 24, 3
    file, out = dataset(tmp_path / "d.jsonl", count), tmp_path / "out"
    asked: list[str] = []

    def reply(request: GenerationRequest) -> str:
        asked.extend(re.findall(r"opera (\d+)", render(request))[-1:])
        return "Vincenzo Bellini"

    script = [
        ScriptStep(match="Task: relevance", reply="true", times=None),
        ScriptStep(reply=reply, delay=0.03, times=None),
    ]
    async with live(script) as server:
        words = [
            "evaluate", str(file), "--methods", "single", "--url", server.url, "--out", str(out),
            "--concurrency", str(at_once), "--data", str(tmp_path / "data"),
        ]  # fmt: skip
        command = [sys.executable, "-m", "service", *words]
        with anyio.fail_after(120):
            async with await anyio.open_process(command, stdout=DEVNULL) as process:
                while not (rows := out / "rows.jsonl").exists() or len(read(rows)) < 5:
                    assert process.returncode is None
                    await anyio.sleep(0.01)
                process.send_signal(signal.SIGKILL)
            kept = {json.loads(line)["id"] for line in read(rows)}
            assert 5 <= len(kept) < count
            done = await anyio.run_process(command)
    assert b"questions already have a result" in done.stdout
    found = read_rows(out)
    assert len(found) == count
    assert {row.error for row in found} == {None}
    twice = {number for number in asked if asked.count(number) > 1} - {"0"}
    assert len(twice) <= at_once, "question 0 also probes what the server refuses"
    assert not {str(int(number) + 1) for number in twice} & kept


def read(rows: Path) -> list[bytes]:
    """The whole lines."""
    content = rows.read_bytes()
    return content[: content.rfind(b"\n") + 1].splitlines()
