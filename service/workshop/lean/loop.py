"""`train sft` with lean = true: AdamW on float32 copies of the weights, which resumes bit for bit.

A point is saved at intervals of updates or minutes, and when the process receives SIGTERM.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy

from service.core.errors import ConfigurationError
from service.engines.encoding import PromptEncoder
from service.workshop.lean.network import LeanLlama, Lora
from service.workshop.lean.packing import Family, batches_of, families_of, packed
from service.workshop.lean.rounding import check_blocks, rounded
from service.workshop.recipes.chats import TokenRow
from service.workshop.recipes.checkpoint import POINTS, write_curves
from service.workshop.recipes.recipe import LossPoint, TrainingRun
from service.workshop.recipes.settings import TrainerSettings
from service.workshop.recipes.trainer import WHOLE, last_point, updates

STATE: Final = "state.pt"
KEPT: Final = 2  # number of saved points that are kept
BETAS: Final = (0.9, 0.99)


class Stopped(KeyboardInterrupt):
    """Raised after a point was saved at the request to stop. The command then ends as after
    Ctrl-C."""


@dataclass(frozen=True)
class Schedule:
    """The updates of a run: `steps` updates of about `tokens` tokens each.

    The learning rate rises during the first `warm_up` updates and falls linearly over the last
    `cool_down`; in between it is constant. With `weight_bits`, the forward pass uses rounded
    weights (`rounding`).
    """

    steps: int
    tokens: int
    learning_rate: float
    warm_up: int
    cool_down: int
    weight_decay: float
    clip: float
    seed: int
    save_every: int
    save_minutes: float | None
    log_every: int
    weight_bits: int | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of update `step`, counted from 0."""
        warm = min(1.0, (step + 1) / max(1, self.warm_up))
        cool = min(1.0, (self.steps - step) / max(1, self.cool_down))
        return self.learning_rate * min(warm, cool)


class TrainingLoop:
    """Trains a model by a schedule. `export` writes the current model to a folder."""

    def __init__(
        self, model: LeanLlama, families: Sequence[Family], plan: Schedule, run: TrainingRun,
        export: Callable[[Path], None],
    ) -> None:  # fmt: skip
        self.model, self.families, self.plan, self.run = model, families, plan, run
        self.export = export
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters = [p.detach().to(torch.float32, copy=True) for p in self.weights]
        self.optimizer = torch.optim.AdamW(
            self.masters, betas=BETAS, weight_decay=plan.weight_decay, fused=True
        )
        self.step = self.tokens = 0
        self.losses: list[LossPoint] = []
        self.recent: list[float] = []
        self.stopping = False

    def fit(self) -> list[LossPoint]:
        """Perform the remaining updates and return the losses of the run. Raises Stopped."""
        if self.run.resume:
            self._resume()
        saved = began = time.monotonic()
        seen = self.tokens
        self._serve()
        with self._stopping_gently(), updates(self.step, self.plan.steps) as progress:
            for batch in self._batches():
                self._update(batch)
                progress.show(self.step)
                now = time.monotonic()
                if self.step % self.plan.log_every == 0 or self.step == self.plan.steps:
                    rate = (self.tokens - seen) / max(1e-9, now - began)
                    self._log(f"{rate:.0f}/s{progress.left(self.step)}")
                minutes = self.plan.save_minutes
                due = self.step % self.plan.save_every == 0
                if self.stopping or due or (minutes and now - saved > 60 * minutes):
                    self._save()
                    saved = now
                if self.stopping:
                    raise Stopped
        return self.losses

    def _batches(self) -> Iterator[list[int]]:
        """Yield the batches of the remaining updates, over as many epochs as necessary."""
        lengths = [len(family) for family in self.families]
        at, epoch = 0, 0
        while at < self.plan.steps:
            for batch in batches_of(lengths, self.plan.tokens, f"{self.plan.seed}:{epoch}"):
                if self.step <= at < self.plan.steps:
                    yield batch
                at += 1
            epoch += 1

    def _update(self, batch: Sequence[int]) -> None:
        families = [self.families[place] for place in batch]
        inputs = packed(families)
        loss = cross_entropy(self.model(inputs), inputs.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        grads = self._gradients()
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.step)
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = grad
        self.optimizer.step()
        self._serve()
        self.step += 1
        self.tokens += sum(map(len, families))
        self.recent.append(loss.item())

    def _serve(self) -> None:
        """Copy the updated weights to the model for the forward pass."""
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                weight.copy_(rounded(master) if self.plan.weight_bits else master)
                weight.grad = master.grad = None

    def _gradients(self) -> list[Tensor]:
        """Return the gradients in float32, with their common norm limited to `clip`."""
        grads = [w.grad for w in self.weights if w.grad is not None]
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads]
        factor = self.plan.clip / max(float(torch.stack(norms).norm()), self.plan.clip)
        return [grad.float().mul_(factor) for grad in grads]

    def _log(self, rate: str) -> None:
        loss = sum(self.recent) / len(self.recent)
        self.losses.append(LossPoint(self.step, loss, self.plan.rate(self.step - 1)))
        self.recent = []
        self.run.say(
            f"step {self.step} of {self.plan.steps}  loss {loss:.4f}  "
            f"{self.tokens:,} tokens, {rate}"
        )

    def _save(self) -> None:
        folder = self.run.folder / POINTS / f"checkpoint-{self.step}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.export(folder)
        state: dict[str, Any] = {
            "step": self.step, "tokens": self.tokens, "losses": self.losses, "recent": self.recent,
            "masters": self.masters, "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        torch.save(state, folder / STATE)
        (folder / WHOLE).touch()
        write_curves(self.run.folder, self.losses)
        others = sorted(folder.parent.glob("checkpoint-*"), key=lambda p: int(p.name[11:]))
        for old in others[:-KEPT]:
            shutil.rmtree(old)

    def _resume(self) -> None:
        point = last_point(self.run.folder / POINTS)
        self.run.say(
            f"resumed at {point.name}"
            if point
            else "no saved state was found; training starts from the beginning"
        )
        if point is None:
            return
        state = torch.load(point / STATE, weights_only=False)  # written by this run  # nosec B614
        self.step, self.tokens = state["step"], state["tokens"]
        self.losses, self.recent = state["losses"], state["recent"]
        with torch.no_grad():
            for master, kept in zip(self.masters, state["masters"], strict=True):
                master.copy_(kept)
        self.optimizer.load_state_dict(state["optimizer"])

    @contextmanager
    def _stopping_gently(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


class LeanSettings(TrainerSettings):
    """The settings that the lean loop reads. The settings of `train sft` include them."""

    longest: int
    batch_tokens: int
    cool_down: float
    save_minutes: float | None
    threads: int | None
    weight_bits: Literal[4] | None


def fit_lean(
    settings: LeanSettings,
    model: Any,
    lora: LoraConfig | None,
    rows: Sequence[TokenRow],
    encoder: PromptEncoder,
    run: TrainingRun,
) -> tuple[list[LossPoint], Any]:
    """Train a transformers `model` and return the losses and the trained model.

    With `lora`, the result is peft's model around it. With `weight_bits`, the weights are returned
    in float32, because bfloat16 would not preserve them. Raises ConfigurationError for a model or
    an adapter that the lean loop cannot train, and Stopped.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)  # for the initial values of the adapter's matrices
    lean = LeanLlama(model, None if lora is None else lean_lora(lora))
    dtype = torch.bfloat16
    if settings.weight_bits:
        if lora is not None:
            raise ConfigurationError("weight_bits: adapters are not rounded; set lora_rank to 0")
        check_blocks([p for p in lean.parameters() if p.requires_grad])
        dtype = torch.float32
    trained = model if lora is None else get_peft_model(model, lora)

    def export(folder: Path) -> None:
        lean.export(model)
        trained.to(dtype).save_pretrained(str(folder))
        encoder.tokenizer.save_pretrained(folder)

    families = families_of(rows, settings.longest)
    run.say(f"{len(rows)} rows in {len(families)} sequences of {sum(map(len, families)):,} tokens")
    losses = TrainingLoop(lean, families, schedule_of(settings, families), run, export).fit()
    lean.export(model)
    return losses, trained.to(dtype)


def lean_lora(config: LoraConfig) -> Lora:
    """Convert a LoRA configuration. Raises ConfigurationError if the lean loop does not support
    it."""
    if config.lora_dropout or config.target_modules != "all-linear":
        raise ConfigurationError(
            "lora_targets, lora_dropout: lean = true adapts all linear layers, without dropout; "
            "leave both unset, or set lean = false"
        )
    return Lora(config.r, config.lora_alpha / config.r)


def schedule_of(settings: LeanSettings, families: Sequence[Family]) -> Schedule:
    lengths = [len(family) for family in families]
    one = len(batches_of(lengths, settings.batch_tokens, f"{settings.seed}:0"))
    steps = settings.steps or max(1, round(one * settings.epochs))

    def updates(value: float) -> int:
        return round(value * steps) if value < 1 else round(value)

    return Schedule(
        steps=steps, tokens=settings.batch_tokens, learning_rate=settings.learning_rate,
        warm_up=updates(settings.warm_up), cool_down=updates(settings.cool_down),
        weight_decay=settings.weight_decay, clip=settings.clip, seed=settings.seed,
        save_every=settings.save_every, save_minutes=settings.save_minutes,
        log_every=settings.log_every, weight_bits=settings.weight_bits,
    )  # fmt: skip
