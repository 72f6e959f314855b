"""Training with `transformers.Trainer`: its arguments, saved points to resume from, and progress
output.

The Trainer finds the devices with accelerate: a single CPU or GPU directly, several with
`accelerate launch` or `torchrun` around `revelator train` (`python -m service train`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from service.core.errors import ConfigurationError
from service.core.progress import rate_and_left
from service.workshop.recipes.recipe import LossPoint, TrainerSettings, TrainingRun
from service.workshop.recipes.run import POINTS, write_losses

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
    trainer.add_callback(_Progress(run))
    point = last_point(run.folder / POINTS) if run.resume else None
    if run.resume and run.main:
        run.say(
            f"resumed at {point.name}"
            if point
            else "no saved state was found; training starts from the beginning"
        )
    trainer.train(resume_from_checkpoint=str(point) if point else None)
    return losses_of(trainer.state)


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
    """Prints each row of the loss table, marks saved points as complete, and updates the table."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.began, self.begun = time.monotonic(), 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.began, self.begun = time.monotonic(), state.global_step

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.run.main and state.log_history and "loss" in state.log_history[-1]:
            loss, step, total = state.log_history[-1]["loss"], state.global_step, state.max_steps
            left = rate_and_left(step, total, time.monotonic() - self.began, self.begun)
            self.run.say(f"step {step} of {total}  loss {loss:.4f}{'  ' if left else ''}{left}")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.run.main:
            write_losses(self.run.folder, losses_of(state))
            point = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            (point / WHOLE).touch()
