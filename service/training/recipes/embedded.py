"""`train embedded`: the model in the wheel, from nothing, on CPU threads.

Its loop is its own (`service/training/embedded.py`): Muon, a schedule by the wall clock or, with
`steps`, by updates; only the latter resumes bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from service.errors import ConfigurationError
from service.training.clock import Clock, UpdateClock
from service.training.corpora import QUESTION_FILES, SOURCES
from service.training.embedded import STEP_TOKENS, Plan, Trainer
from service.training.mixture import SHARES
from service.training.network import VOCABULARY
from service.training.recipes.checkpoint import POINTS
from service.training.recipes.data import hash_files
from service.training.recipes.embedded_smoke import write_smoke_data
from service.training.recipes.recipe import LossPoint, Outcome, Recipe, Run, Score, TrainingData
from service.training.recipes.settings import RecipeSettings
from service.training.scoring import Heldout, Scorer, label_accuracy, route_of, share

CHANCE = {"route": 1 / 3, "relevance": 1 / 2}


class EmbeddedSettings(RecipeSettings):
    """`data` is one folder of corpora and real questions, both sides of the split in it."""

    minutes: float = Field(85.0, gt=0)
    copying: float = Field(
        0.1, ge=0, lt=1, description="Share of the time that copying comes first."
    )
    steps: int | None = Field(None, ge=1, description="Updates, instead of minutes.")
    save_minutes: float = Field(3.0, gt=0, description="By the wall clock; else save_every.")
    scale: float = Field(1.0, gt=0, description="Factor on the learning rates.")
    threads: int = Field(1, ge=1)
    vocabulary: int = Field(VOCABULARY, ge=300)
    layers: int = Field(5, ge=1)
    width: int = Field(256, ge=64, multiple_of=16)
    step_tokens: int = Field(STEP_TOKENS, ge=256)
    shares: dict[str, float] = Field({}, description="Of the roles; else the mixture's own.")
    score_rows: int = Field(150, ge=2)


def read_folder(settings: EmbeddedSettings) -> TrainingData[Any]:
    """The folder's hash. Rows are made while training, from what is not held out alone.

    Raises ConfigurationError naming a file that is missing or a share of no role.
    """
    if len(settings.data) != 1:
        raise ConfigurationError("data: name one folder of corpora and questions (--data)")
    (folder,) = settings.data
    files = [folder / source / "corpus.jsonl" for source in SOURCES]
    files += [folder / name for name in QUESTION_FILES.values()]
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise ConfigurationError(f"data: no {', '.join(missing)}")
    unknown = settings.shares.keys() - SHARES.keys() - {"copying"}
    if unknown:
        raise ConfigurationError(f"shares: no role {min(unknown)!r}; there are {', '.join(SHARES)}")
    return TrainingData((), (), hash_files(files))


def fit_embedded(settings: EmbeddedSettings, data: TrainingData[Any], run: Run) -> Outcome:
    """Train, export the model, and score it on what is held out."""
    torch.set_num_threads(settings.threads)
    plan = plan_of(settings, run.folder)
    plan.point.parent.mkdir(exist_ok=True)
    resumed = run.resume and plan.point.exists()
    trainer = Trainer(plan, resume=resumed, say=run.say)
    if run.resume:
        run.say(f"resumed at update {trainer.step}" if resumed else "nothing was saved: anew")
    trainer.run()
    losses = [LossPoint(step, loss) for step, loss in trainer.losses]
    return Outcome(losses, held_out_scores(trainer, settings))


def plan_of(settings: EmbeddedSettings, folder: Path) -> Plan:
    """The settings in the unit of their clock: updates where `steps` is given, else seconds."""
    if settings.steps:
        clock: Clock = UpdateClock(settings.steps, scale=settings.scale)
        save_every = float(settings.save_every)
    else:
        clock = Clock(settings.minutes * 60.0, scale=settings.scale)
        save_every = settings.save_minutes * 60.0
    return Plan(
        data=settings.data[0],
        out=folder,
        point=folder / POINTS / "state.pt",
        clock=clock,
        copying=settings.copying * clock.limit,
        save_every=save_every,
        measure_every=0,
        log_every=settings.log_every,
        seed=settings.seed,
        vocabulary=settings.vocabulary,
        layers=settings.layers,
        width=settings.width,
        step_tokens=settings.step_tokens,
        shares=settings.shares or None,
    )


def held_out_scores(trainer: Trainer, settings: EmbeddedSettings) -> dict[str, Score]:
    """Routes of synthesised questions in unseen wordings, and relevance of nearest passages."""
    held = Heldout(settings.data[0])
    scorer = Scorer(trainer.average.model, trainer.tokenizer)
    routes = held.made_routes(settings.score_rows // 3 + 1)[: settings.score_rows]
    judged = held.relevance(settings.score_rows)
    values = {
        "route": share(routes, lambda question, gold: route_of(scorer, question) == gold),
        "relevance": label_accuracy(scorer, judged, ("true", "false")),
    }
    return {name: Score(value, CHANCE[name], settings.score_rows) for name, value in values.items()}


def smoke(folder: Path) -> EmbeddedSettings:
    """A smaller model learns to copy and to route, on a made-up world."""
    write_smoke_data(folder)
    return EmbeddedSettings(
        data=(folder,), steps=100, copying=0.1, vocabulary=700, layers=2, width=64,
        step_tokens=2048, shares={"route": 8.0, "copying": 1.0}, score_rows=50,
        save_every=30, log_every=5,
    )  # fmt: skip


RECIPE: Recipe[EmbeddedSettings, Any] = Recipe(
    name="embedded",
    settings=EmbeddedSettings,
    presets={"small": {"layers": 2, "width": 128, "minutes": 10.0}},
    read=read_folder,
    fit=fit_embedded,
    smoke=smoke,
)
