"""A recipe of a few numbers: a straight line through points, with dropout, by the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from service.workshop.facts.rows import Sourced
from service.workshop.recipes.recipe import (
    Recipe,
    Score,
    TrainerSettings,
    TrainingData,
    TrainingResult,
    TrainingRun,
    read_data,
)
from service.workshop.recipes.trainer import fit, trainer_arguments


class Point(Sourced):
    x: list[float]
    y: float


class ToySettings(TrainerSettings):
    width: int = 8


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


def fit_toy(settings: ToySettings, data: TrainingData[Point], run: TrainingRun) -> TrainingResult:
    torch.manual_seed(settings.seed)
    model = Net(settings.width)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**trainer_arguments(settings, run)),
        train_dataset=[{"x": row.x, "labels": row.y} for row in data.train],
    )
    losses = fit(trainer, run)
    torch.save(model.state_dict(), run.folder / "weights.pt")
    right = [float(model.layers(torch.tensor(r.x)) > 0) == float(r.y > 0) for r in data.held_out]
    scores = {"sign": Score(sum(right) / len(right), 0.5, len(right))} if right else {}
    return TrainingResult(losses, scores)


def smoke(folder: Path) -> ToySettings:
    raise NotImplementedError


RECIPE: Recipe[ToySettings, Point] = Recipe(
    name="toy",
    settings=ToySettings,
    presets={"wide": {"width": 16, "learning_rate": 0.01}},
    read=lambda settings: read_data(Point, settings),
    fit=fit_toy,
    smoke=smoke,
)


def point(number: int, title: str) -> dict[str, Any]:
    x = [(number % 7) / 7, (number % 5) / 5]
    source = {"pipeline": "toy", "teacher": "rules", "item": str(number), "titles": [title]}
    source["answer_title"] = title
    return {"question": f"point {number}", "provenance": source, "x": x, "y": x[0] - x[1]}
