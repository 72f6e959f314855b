"""Trains the embedded model on one CPU thread, from nothing, by the wall clock.

python -m service.training.embedded --data DIR --out DIR --minutes 85
python -m service.training.embedded --data DIR --out DIR --minutes 85 --resume

DIR of ``--data`` is the data folder, ``--out`` takes the checkpoint, the log and the export.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from service.training.batches import Batches
from service.training.clock import Clock
from service.training.copying import Example, copying_examples
from service.training.corpora import load_passages, tokenizer_texts
from service.training.mixture import task_examples
from service.training.network import CONTEXT, VOCABULARY, build_model, export_model, model_config
from service.training.scoring import quick_scores
from service.training.tokenizer import EOS, load_tokenizer, save_tokenizer, train_tokenizer

logger = logging.getLogger(__name__)

MATRIX_RATE = 0.015
TABLE_RATE = 2e-3
STEP_TOKENS = 8192
# Share and weight of prompt ids in the loss: little, but it keeps the language itself learning.
PROMPT_SHARE = 0.2
PROMPT_WEIGHT = 0.02
LEAST_WEIGHT, MOST_WEIGHT = 2.0, 5.0
# The weights that are measured and exported are a running mean over about 70 steps.
AVERAGED = 0.985


@dataclass(frozen=True)
class Plan:
    """What a run does. `clock` tells how long; `copying`, `save_every` and `measure_every` are in
    its unit (seconds or updates), and 0 does not measure. `shares`: of the roles, else the
    mixture's own. `point` is where the state to resume from is kept."""

    data: Path
    out: Path
    point: Path
    clock: Clock
    copying: float
    save_every: float
    measure_every: float
    log_every: int = 10
    seed: int = 0
    vocabulary: int = VOCABULARY
    layers: int = 5
    width: int = 256
    step_tokens: int = STEP_TOKENS
    shares: Mapping[str, float] | None = None


class Optimiser:
    """Muon for the layers' matrices, AdamW for the embedding table and the norms."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        known = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in known]
        muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.02)
        adam = torch.optim.AdamW(others, lr=TABLE_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [
            (muon, MATRIX_RATE),
            (adam, TABLE_RATE),
        ]
        self.parameters = [p for _, p in named]

    def step(self, factor: float) -> float:
        """One update with the rates times `factor`; returns the gradient's norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimiser, rate in self.parts:
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> list[dict[str, object]]:
        return [optimiser.state_dict() for optimiser, _ in self.parts]

    def load(self, states: list[dict[str, object]]) -> None:
        for (optimiser, _), state in zip(self.parts, states, strict=True):
            optimiser.load_state_dict(state)


def batch_loss(
    model: LlamaForCausalLM, batch: list[Example], prompt_weight: float = 0.0
) -> tuple[Tensor, float]:
    """Weighted sum of the cross entropies of the counted ids, and the sum of the weights.

    An example's ids share a weight of about the square root of their number, within bounds,
    so that a label of one id is not drowned by a rewritten question or a long draft. With a
    `prompt_weight` a random share of the other ids counts too.
    """
    length = max(len(example.ids) for example in batch)
    ids = torch.full((len(batch), length), EOS)
    weights = torch.zeros(len(batch), length)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        counted = torch.tensor(example.counted, dtype=torch.float32)
        extra = (torch.rand(len(counted)) < PROMPT_SHARE) * (1 - counted) * prompt_weight
        size = counted.sum().clamp(min=1)
        weights[row, : len(counted)] = (
            counted * size.sqrt().clamp(LEAST_WEIGHT, MOST_WEIGHT) / size + extra
        )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        chosen = weights[:, 1:] > 0
        logits = model.lm_head(hidden[chosen])
    losses = functional.cross_entropy(logits.float(), ids[:, 1:][chosen], reduction="none")
    picked = weights[:, 1:][chosen]
    return (losses * picked).sum(), float(picked.sum())


def train_step(
    model: LlamaForCausalLM,
    optimiser: Optimiser,
    source: Iterator[list[Example]],
    factor: float,
    tokens: int = STEP_TOKENS,
) -> tuple[float, int]:
    """One update over about `tokens` ids; returns the mean loss and the ids seen."""
    total, weight, seen = 0.0, 0.0, 0
    while seen < tokens:
        batch = next(source)
        loss, share = batch_loss(model, batch, PROMPT_WEIGHT)
        (loss / 100.0).backward()  # type: ignore[no-untyped-call]
        total, weight = total + float(loss.detach()), weight + share
        seen += sum(len(example.ids) for example in batch)
    for parameter in optimiser.parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(100.0 / weight)
    optimiser.step(factor)
    return total / weight, seen


class RunningMean:
    """The weights of the last steps averaged: what training at a high rate would settle to."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = deepcopy(model)
        self.model.train(False)

    @torch.no_grad()
    def update(self, model: LlamaForCausalLM) -> None:
        for mean, new in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.lerp_(new, 1 - AVERAGED)


def save_checkpoint(path: Path, state: dict[str, object]) -> None:
    """Write everything `--resume` needs, whole or not at all."""
    partial = path.with_suffix(".part")
    torch.save(state, partial)
    os.replace(partial, path)


class Trainer:
    """The loop: copying first, then the tasks, with saved states and small evaluations.

    On an `UpdateClock` a run that was cut and resumed gives the weights of one that was not, bit
    for bit.
    """

    def __init__(
        self, plan: Plan, *, resume: bool = False, say: Callable[[str], None] = logger.info
    ) -> None:
        self.plan, self.clock, self.say = plan, plan.clock, say
        plan.out.mkdir(parents=True, exist_ok=True)
        self.rng = random.Random(plan.seed)
        torch.manual_seed(plan.seed)
        self.passages = load_passages(plan.data)
        self.tokenizer = self._tokenizer()
        size = self.tokenizer.get_vocab_size()
        self.model = build_model(model_config(size, plan.layers, plan.width))
        self.optimiser = Optimiser(self.model)
        self.average = RunningMean(self.model)
        self.step, self.tokens = 0, 0
        self.losses: list[tuple[int, float]] = []
        self.batches = Batches(self._source(), self.rng, self.clock)
        if resume:
            self._resume()

    def _tokenizer(self) -> Tokenizer:
        if not (self.plan.out / "tokenizer.json").exists():
            texts = tokenizer_texts(self.plan.data, self.passages)
            save_tokenizer(train_tokenizer(texts, self.plan.vocabulary), self.plan.out, CONTEXT)
        return load_tokenizer(self.plan.out)

    def _resume(self) -> None:
        state = torch.load(self.plan.point, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.model.load_state_dict(state["average"])
        self.optimiser.load(state["optimiser"])
        progress = state["progress"]
        self.step, self.tokens = int(progress["step"]), int(progress["tokens"])
        if "stream" in state:
            self._draw_again(state["stream"])
        else:  # written before the stream was kept: other examples from here on
            self.rng.seed(self.plan.seed + self.step)
        self.clock.set(progress["elapsed_s"])

    def _draw_again(self, stream: dict[str, Any]) -> None:
        version, words, gauss = stream["before"]
        self.rng.setstate((version, tuple(words), gauss))
        self.clock.set(stream["drawn_at"])
        if stream["taken"]:
            self.batches.skip(stream["taken"])
        self.losses = [(int(step), loss) for step, loss in stream["losses"]]
        torch.set_rng_state(stream["torch"])

    def save(self) -> None:
        """Keep the state to resume from, and export the model as it stands."""
        state: dict[str, object] = {
            "model": self.model.state_dict(),
            "average": self.average.model.state_dict(),
            "optimiser": self.optimiser.state(),
            "progress": {
                "elapsed_s": self.clock.now, "step": float(self.step), "tokens": float(self.tokens)
            },
            "stream": {
                "before": self.batches.before, "drawn_at": self.batches.drawn_at,
                "taken": self.batches.taken, "torch": torch.get_rng_state(),
                "losses": self.losses,
            },
        }  # fmt: skip
        save_checkpoint(self.plan.point, state)
        export_model(self.average.model, self.plan.out)

    def _source(self) -> Iterator[Example]:
        """Copying until its time is over, then the mixture of tasks."""
        copying = copying_examples(self.tokenizer, self.passages, self.rng)
        while self.clock.now < self.plan.copying:
            yield next(copying)
        yield from task_examples(
            self.tokenizer, self.plan.data, self.rng, self.clock.share, self.plan.shares
        )

    def run(self) -> None:
        """Train until the time is over; the last saved state is the result."""
        saved = measured = self.clock.now
        recent: list[float] = []
        self.model.train()
        while self.clock.share() < 1:
            loss, seen = train_step(
                self.model, self.optimiser, self.batches, self.clock.rate(), self.plan.step_tokens
            )
            self.average.update(self.model)
            self.clock.tick()
            self.step, self.tokens = self.step + 1, self.tokens + seen
            recent.append(loss)
            if self.step % self.plan.log_every == 0:
                self._log(recent)
            if self.clock.now - saved >= self.plan.save_every:
                self.save()
                saved = self.clock.now
            if 0 < self.plan.measure_every <= self.clock.now - measured:
                self.measure()
                measured = self.clock.now
        self.save()

    def _log(self, recent: list[float]) -> None:
        self.losses.append((self.step, fmean(recent)))
        self.say(
            f"step {self.step}  {self.clock.share():.0%}  {self.tokens / 1e6:.2f} M tokens  "
            f"loss {self.losses[-1][1]:.3f}"
        )
        recent.clear()

    def measure(self) -> None:
        scores = quick_scores(self.average.model, self.tokenizer, self.plan.data)
        self.say("scores " + " ".join(f"{k}={v:.3f}" for k, v in scores.items()))


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan of the command line: by the wall clock."""
    return Plan(
        data=options.data,
        out=options.out,
        point=options.out / "checkpoint.pt",
        clock=Clock(options.minutes * 60.0, scale=options.scale),
        copying=options.copying_minutes * 60.0,
        save_every=options.save_s,
        measure_every=options.measure_s,
        seed=options.seed,
    )


def main() -> None:
    """Command line of the recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint, log and export")
    parser.add_argument("--minutes", type=float, default=85.0, help="wall clock of the training")
    parser.add_argument("--copying-minutes", type=float, default=8.0)
    parser.add_argument("--save-s", type=float, default=180.0, help="seconds between checkpoints")
    parser.add_argument("--measure-s", type=float, default=480.0, help="seconds between scores")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    trainer = Trainer(plan_of(options), resume=options.resume)
    trainer.run()
    trainer.measure()


if __name__ == "__main__":
    main()
