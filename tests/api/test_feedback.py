"""What people think of answers: kept with what it is about, and exported as rows for `evaluate`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from service.api import feedback as module
from service.cli.main import app
from service.core import files
from service.evaluation.datasets import read_question
from tests.api.test_bad_input import check_problem
from tests.api.test_tenants import entry, key, tenants
from tests.support.live import Live, answering, config, live
from tests.support.scripted import ScriptedGenerator

ABOUT = {"question": "Who composed Norma?", "collection": "sample"}


async def give(service: Live, answer_id: str, headers: Any = None, **given: Any) -> Any:
    body = {"answer_id": answer_id, "verdict": "up"} | given
    return await service.post("/feedback", json=body, headers=headers or {})


async def asked(service: Live, **fields: Any) -> dict[str, Any]:
    response = await service.post("/answer", json=ABOUT | fields, headers=key("one"))
    assert response.status == 200
    body: dict[str, Any] = response.json()
    return body


async def test_the_latest_word_about_an_answer_is_exported(tmp_path: Path) -> None:
    settings = tenants(tmp_path, entry("one"), entry("two")).model_copy(
        update={"ingest": config(ingest={"keep_files": True}).ingest}
    )
    async with live(ScriptedGenerator(answering()), settings=settings) as service:
        settings.data_dir.mkdir()
        answers = [await asked(service) for _ in range(4)]
        first, second, third, fourth = (each["id"] for each in answers)
        mine = key("one")
        wrong = {"verdict": "down"}
        for answer_id, given in (
            (first, {}), (second, wrong | {"reason": "no"}), (third, wrong),
            (third, wrong | {"expected": " Bellini "}), (fourth, wrong),
        ):  # fmt: skip
            assert (await give(service, answer_id, mine, **given)).status == 204
        words = [give(service, fourth, mine) for _ in range(8)]
        assert {each.status for each in await asyncio.gather(*words)} == {204}
        for answer_id, headers in ((first, key("two")), ("nothing", mine)):
            problem = check_problem(await give(service, answer_id, headers), 404, "not-found")
            assert f"no answer '{answer_id}'" in problem["detail"]
        for given in ({"verdict": "maybe"}, {"reason": "x" * 2_001}, {"colour": "red"}):
            check_problem(await give(service, first, mine, **given), 422, "invalid-request")
    with (settings.data_dir / module.FILE).open("ab") as file:
        file.write(b'\n{"answer_id": "torn')
    rows = list(module.rows_for_evaluation(settings.data_dir))
    assert [(row["id"], row["answers"]) for row in rows] == [
        (first, ["Vincenzo Bellini"]), (third, ["Bellini"]), (fourth, ["Vincenzo Bellini"]),
    ]  # fmt: skip
    cited = [each["passage_id"] for each in answers[0]["citations"]]
    gold = read_question(rows[0], "x")
    assert cited
    assert (gold.question, gold.supporting) == (ABOUT["question"], frozenset(cited))
    done = CliRunner().invoke(app, ["feedback", "export", "--data", str(settings.data_dir)])
    assert [orjson.loads(line)["id"] for line in done.stdout.splitlines()] == [first, third, fourth]


async def test_feedback_is_refused_where_nothing_is_kept(tmp_path: Path) -> None:
    async with live(ScriptedGenerator(answering()), settings=config(data_dir=tmp_path)) as service:
        answer = await asked(service)
        problem = check_problem(await give(service, answer["id"]), 404, "not-found")
        assert "ingest.keep_files is not set" in problem["detail"]


async def test_feedback_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WORDS", 3)
    settings = config(ingest={"keep_files": True}, data_dir=tmp_path)
    async with live(ScriptedGenerator(answering()), settings=settings) as service:
        first, other = [(await asked(service))["id"] for _ in range(2)]
        assert [(await give(service, first)).status for _ in range(4)] == [204, 204, 204, 422]
        monkeypatch.setattr(module, "MOST_BYTES", (tmp_path / module.FILE).stat().st_size)
        problem = check_problem(await give(service, other), 500, "store")
        assert "feedback.jsonl has reached" in problem["detail"]
        room = SimpleNamespace(f_bavail=files.ROOM - 1, f_frsize=1)
        monkeypatch.setattr(files.os, "statvfs", lambda folder: room)
        problem = check_problem(await give(service, other), 500, "store")
        assert "needed to keep feedback" in problem["detail"]


async def test_only_the_latest_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    settings = config(ingest={"keep_files": True})
    async with live(ScriptedGenerator(answering()), settings=settings) as service:
        first, *_ = [await asked(service) for _ in range(3)]
        check_problem(await give(service, first["id"]), 404, "not-found")
