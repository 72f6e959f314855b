"""Evaluations of small datasets by a scripted engine, and rows."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.evaluation.command import EvaluationOptions, evaluate_datasets
from service.evaluation.metrics import VERSIONS
from service.evaluation.rows import Row
from tests.support.asking import ScriptedRetriever, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep, render

ROME = passage("rome", "Rome is the capital of Italy.")


def row(method: str, id: str, f1: float | None = 1.0, **more: Any) -> Row:
    """A row of the dataset `d`, whose scores besides F1, EM and accuracy do not apply."""
    exact = None if f1 is None else float(f1 == 1)
    given: dict[str, Any] = {
        "question": f"Question {id}?", "gold": ("x",), "gold_route": None, "prediction": "y",
        "answered": True, "parts": 0, "parts_found": 0, "dataset": "d", "ms": 1_000.0,
        "scores": dict.fromkeys(VERSIONS) | {"em": exact, "f1": f1, "accuracy": f1},
    }  # fmt: skip
    return Row(**{**given, **more}, method=method, id=id)


def rows(method: str, scores: Sequence[float | None], **more: Any) -> list[Row]:
    return [row(method, str(n), score, **more) for n, score in enumerate(scores)]


def dataset(path: Path, *answers: str, **more: Any) -> Path:
    lines = [
        json.dumps({"question": f"Question {n} of {path.stem}?", "answer": answer, **more})
        for n, answer in enumerate(answers, 1)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


class Engine:
    """Says `Rome`, and judges every passage relevant. `fails` may raise for a request instead."""

    def __init__(self, fails: Callable[[str], Exception | None] = lambda text: None) -> None:
        self.asked: list[str] = []
        self._fails = fails
        steps = [
            ScriptStep("true", "Task: relevance", times=None),
            ScriptStep(self._reply, times=None),
        ]
        self.generator = ScriptedGenerator(steps)

    def _reply(self, request: GenerationRequest) -> str:
        text = render(request)
        if failure := self._fails(text):
            raise failure
        self.asked += re.findall(r"Question \d+ of \w+\?", text)[-1:]
        return "Rome"


async def evaluated(
    *datasets: Path | str, settings: Settings | None = None, **options: Any
) -> tuple[int, str]:
    screen = Console(file=io.StringIO(), width=150)
    given = EvaluationOptions(
        [str(path) for path in datasets], **{"methods": ["single"], **options}
    )
    code = await evaluate_datasets(settings or Settings(), given, screen)
    assert isinstance(screen.file, io.StringIO)
    return code, screen.file.getvalue()


Opened = Callable[[Engine], ScriptedRetriever]
