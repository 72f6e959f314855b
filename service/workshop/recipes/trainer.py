"""Training with `transformers.Trainer`: its arguments, saved points to resume from, and progress
output.

The Trainer finds the devices with accelerate: a single CPU or GPU directly, several with
`accelerate launch` or `torchrun` around `revelator train` (`python -m service train`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from service.core.errors import ConfigurationError
from service.core.progress import ShowProgress, rate_and_left, shown_progress
from service.workshop.recipes.checkpoint import POINTS, write_curves
from service.workshop.recipes.recipe import LossPoint, TrainingRun
from service.workshop.recipes.settings import TrainerSettings

WHOLE = "whole"  # file that is written last and marks a saved point as complete
SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


def trainer_arguments(settings: TrainerSettings, run: TrainingRun) -> dict[str, Any]:
    """Return keyword arguments for `TrainingArguments` or a subclass.

    Raises ConfigurationError if `batch` cannot be divided among the devices, or if a device does
    not support the precision.
    """
    if settings.precision == "fp16" and (settings.device == "cpu" or not torch.cuda.is_available()):
        raise ConfigurationError("precision: fp16 needs a GPU; a CPU has bf16 and fp32")
    return {
        "output_dir": str(run.folder / POINTS),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.steps or -1,
        **_batches(settings, devices(settings)),
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": SCHEDULES[settings.schedule],
        "warmup_steps": settings.warm_up,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.clip,
        "bf16": settings.precision == "bf16",
        "fp16": settings.precision == "fp16",
        "use_cpu": settings.device == "cpu",
        "seed": settings.seed,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": 2,
        "logging_steps": settings.log_every,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "eval_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
    }


def devices(settings: TrainerSettings) -> int:
    """Return the number of devices: the launcher's processes, else the devices of this process."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 or settings.device == "cpu":
        return processes
    return max(1, torch.cuda.device_count())


def _batches(settings: TrainerSettings, count: int) -> dict[str, int]:
    at_once = min(settings.rows_at_once, max(1, settings.batch // count))
    if settings.batch % (at_once * count):
        raise ConfigurationError(
            f"batch: {settings.batch} rows cannot be split into {at_once} at once (rows_at_once) "
            f"on {count} devices: choose a multiple of {at_once * count}"
        )
    accumulated = settings.batch // (at_once * count)
    return {"per_device_train_batch_size": at_once, "gradient_accumulation_steps": accumulated}


def fit(trainer: Trainer, run: TrainingRun) -> list[LossPoint]:
    """Train to the end and return all losses of the run.

    With `run.resume`, training continues from the last complete saved point. The caller writes the
    weights.
    """
    trainer.remove_callback(PrinterCallback)
    progress = _Progress(run)
    trainer.add_callback(progress)
    point = last_point(run.folder / POINTS) if run.resume else None
    if run.resume and run.main:
        run.say(
            f"resumed at {point.name}"
            if point
            else "no saved state was found; training starts from the beginning"
        )
    with progress.bar:
        trainer.train(resume_from_checkpoint=str(point) if point else None)
    return losses_of(trainer.state)


class Updates:
    """The progress of a training. `tell` advances the bar; `left` returns the text at the end of a
    line."""

    def __init__(self, begun: int, total: int, show: ShowProgress) -> None:
        self.began, self.begun, self.total, self.show = time.monotonic(), begun, total, show

    def left(self, done: int) -> str:
        """Return the rate and the remaining time, if they are known."""
        rate_text = rate_and_left(done, self.total, time.monotonic() - self.began, self.begun)
        return f"  {rate_text}" if rate_text else ""


@contextmanager
def updates(begun: int, total: int) -> Iterator[Updates]:
    """Show the progress of the updates, of which `begun` were done by an earlier run."""
    screen = Console()
    with shown_progress("training", "updates", total, screen, begun=begun, lines=False) as show:
        yield Updates(begun, total, show)


def last_point(folder: Path) -> Path | None:
    """Return the newest complete saved point, or None."""
    whole = [path.parent for path in folder.glob(f"checkpoint-*/{WHOLE}")]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def losses_of(state: TrainerState) -> list[LossPoint]:
    """Return the loss table so far, over all resumed parts of the run."""
    return [
        LossPoint(int(entry["step"]), float(entry["loss"]), entry.get("learning_rate"))
        for entry in state.log_history
        if "loss" in entry
    ]


class _Progress(TrainerCallback):
    """Shows the progress, prints each row of the loss table, marks saved points as complete, and
    updates the table and the plot.

    `bar` is open while the run trains.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.bar = ExitStack()
        self.updates: Updates | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.run.main:
            self.updates = self.bar.enter_context(updates(state.global_step, state.max_steps))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.updates:
            self.updates.show(state.global_step)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.run.main and state.log_history and "loss" in state.log_history[-1]:
            loss = state.log_history[-1]["loss"]
            left = self.updates.left(state.global_step) if self.updates else ""
            self.run.say(f"step {state.global_step} of {state.max_steps}  loss {loss:.4f}{left}")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.run.main:
            write_curves(self.run.folder, losses_of(state))
            point = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            (point / WHOLE).touch()
