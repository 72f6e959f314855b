from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.settings import Settings
from service.evaluation import tuning
from service.evaluation.tuning import Trial, best, tune_dragin
from service.runtime import open_runtime
from tests.stubs.fake_retriever import FakeRetriever
from tests.stubs.signal_engine import DraftScript, SignalEngine
from tests.support.scripted import ScriptStep

pytestmark = pytest.mark.anyio


def test_the_best_has_the_highest_em_then_the_fewest_retrievals() -> None:
    trials = [
        Trial(0.4, 0.5, 0.6, 3.0, 0),
        Trial(0.6, 0.5, 0.5, 1.0, 0),
        Trial(0.8, 0.5, 0.5, 1.0, 0),
        Trial(1.0, 0.4, 0.9, 0.0, 0),
    ]
    assert best(trials).threshold == 0.8


async def test_each_threshold_is_tried_on_every_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"question": "Who sang?", "answer": "Norma"}) + "\n")
    wrong = DraftScript(
        " Berta sang then. So the answer is Berta.", loud={"Berta": 2.0}, attention={"Berta": 0.6}
    )
    right = DraftScript(" So the answer is Norma.")
    engine = SignalEngine([wrong, right, wrong], [ScriptStep("Norma sang. So it is.")])

    def opening(settings: Settings, **_: Any) -> Any:
        return open_runtime(settings, engines={"default": engine}, retriever=FakeRetriever())

    monkeypatch.setattr(tuning, "open_runtime", opening)
    code = await tune_dragin(
        Settings(), file, {"route": "single"}, thresholds=(1.0, 9.0), concurrency=1
    )
    engine.assert_finished()
    assert code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 1.000 1.000 1.00 0 best" in shown
    assert "9 0.000 0.000 0.00 0" in shown
    assert "profile = 'service', threshold = 1" in shown


async def test_a_bad_file_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("{}\n")
    assert await tune_dragin(Settings(), file, {}) == 2
