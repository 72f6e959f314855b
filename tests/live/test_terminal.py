"""`revelator ask`, `chat` and `search` at a live server."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import anyio
import pytest

from service.cli.ask import ask_in_terminal, chat_in_terminal, read_lines, search_in_terminal
from service.core.errors import InvalidRequest
from service.core.settings import Settings
from service.evaluation.traces import read_trace
from tests.support.live import answering, config, live
from tests.support.scripted import ScriptedGenerator, ScriptStep


async def test_a_conversation_has_what_was_said_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten = "Where was Vincenzo Bellini born?"
    condense = ScriptStep(match="Where was he born?", reply=rewritten, times=1)
    engine = ScriptedGenerator([condense, *answering()])
    reading, writing = os.pipe()
    os.write(writing, b"Who composed Norma?\nWhere was he born?\n\nnever asked\n")
    os.close(writing)
    settings = Settings(data_dir=tmp_path)
    async with live(engine) as server:
        code = await chat_in_terminal(settings, {}, url=server.url, source=reading)
    os.close(reading)
    shown = capsys.readouterr().out
    assert code == 0
    assert f"Search (hybrid): {rewritten}" in shown
    assert "never asked" not in shown
    assert "Who composed Norma?" in str(engine.requests[-3:]) + shown


async def test_a_conversation_goes_on_after_a_question_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data_dir=tmp_path)
    async with live() as server:
        for asked, goes_on in ((b"Who composed Norma?\n", True), (b"", False)):
            reading, writing = os.pipe()
            os.write(writing, asked + b"why " * 1_001 + b"\nWho composed Norma?\n")
            os.close(writing)
            talk = partial(chat_in_terminal, settings, {}, url=server.url, source=reading)
            if goes_on:
                assert await talk() == 0
                shown = capsys.readouterr().out
                assert "at most 4000 characters" in " ".join(shown.split())
                assert shown.count("Route: single") == 2
            else:
                with pytest.raises(InvalidRequest, match="4000"):
                    await talk()
            os.close(reading)


async def test_a_question_keeps_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, settings = tmp_path / "new" / "norma.jsonl", Settings(data_dir=tmp_path)
    async with live() as server:
        fields = {"question": "Who composed Norma?", "route": "single"}
        ask = partial(ask_in_terminal, settings, fields, url=server.url, trace=file)
        assert await ask(as_json=True) == 0
    body = json.loads(capsys.readouterr().out)
    trace = read_trace(file)
    assert trace.question == "Who composed Norma?"
    assert trace.result.model_dump(mode="json") == body


async def test_a_search_prints_the_same_passages_with_and_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"query": "writer of Billy Elliot", "collection": "sample", "top_k": 2}
    settings = config(tmp_path)
    found = partial(search_in_terminal, fields=fields, as_json=True)
    assert await found(settings, url=None) == 0
    own = json.loads(capsys.readouterr().out)
    async with live(settings=settings, own_stores=True) as server:
        assert await found(settings, url=server.url) == 0
        assert json.loads(capsys.readouterr().out) == own
        assert await search_in_terminal(settings, fields, url=server.url, as_json=False) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"1. {own[0]['title']}\n   {own[0]['passage_id']}, score ")
        nothing = fields | {"query": "xyzzy", "retriever": "bm25"}
        assert await search_in_terminal(settings, nothing, url=server.url, as_json=True) == 1
    assert len(own) == 2


async def test_lines_of_a_file_and_of_a_slow_pipe(tmp_path: Path) -> None:
    path = tmp_path / "questions"
    path.write_text("one\ntwo\nthree")
    with path.open("rb") as file:
        assert [line async for line in read_lines(file.fileno())] == ["one", "two", "three"]
    reading, writing = os.pipe()
    os.write(writing, "a\nh\u00e9".encode()[:-1])
    lines = read_lines(reading)
    assert await anext(lines) == "a"
    with anyio.move_on_after(0.05) as waiting:
        await anext(lines)
    assert waiting.cancelled_caught
    os.close(writing)
    os.close(reading)
