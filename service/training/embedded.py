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
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from service.training.copying import Example, copying_examples
from service.training.corpora import load_passages, tokenizer_texts
from service.training.mixture import task_examples
from service.training.network import CONTEXT, VOCABULARY, build_model, export_model, model_config
from service.training.scoring import quick_scores
from service.training.tokenizer import EOS, load_tokenizer, save_tokenizer, train_tokenizer

logger = logging.getLogger(__name__)

MATRIX_RATE = 0.015
TABLE_RATE = 2e-3
WARM_UP_S = 60.0
STEP_TOKENS = 8192
# Share and weight of prompt ids in the loss: little, but it keeps the language itself learning.
PROMPT_SHARE = 0.2
PROMPT_WEIGHT = 0.02
LEAST_WEIGHT, MOST_WEIGHT = 2.0, 5.0
ROW_TOKENS = 2048
# The weights that are measured and exported are a running mean over about 70 steps.
AVERAGED = 0.985
POOL = 512


@dataclass
class Clock:
    """Training time in seconds, continued over resumed runs; the schedule hangs on it."""

    limit_s: float
    before_s: float = 0.0
    scale: float = 1.0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return self.before_s + time.monotonic() - self.started

    def rate(self) -> float:
        """Factor on the learning rates: up in a minute, flat, then a line down, all by `scale`."""
        share = min(1.0, self.elapsed_s / self.limit_s)
        warm = min(1.0, (self.elapsed_s + 1.0) / WARM_UP_S)
        return self.scale * warm * max(0.01, min(1.0, 1.6 * (1 - share)))


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


def batches(examples: Iterator[Example], rng: random.Random) -> Iterator[list[Example]]:
    """Groups of examples of similar length, at most ROW_TOKENS ids each with their padding."""
    while True:
        pool = sorted((next(examples) for _ in range(POOL)), key=lambda e: len(e.ids))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if len(example.ids) > CONTEXT:
                continue
            if groups[-1] and (len(groups[-1]) + 1) * len(example.ids) > ROW_TOKENS:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        yield from groups


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
    model: LlamaForCausalLM, optimiser: Optimiser, source: Iterator[list[Example]], factor: float
) -> tuple[float, int]:
    """One update over about STEP_TOKENS ids; returns the mean loss and the ids seen."""
    total, weight, seen = 0.0, 0.0, 0
    while seen < STEP_TOKENS:
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
    """The loop: copying first, then the tasks, with checkpoints and small evaluations."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.rng = random.Random(options.seed)
        torch.manual_seed(options.seed)
        self.passages = load_passages(options.data)
        self.tokenizer = self._tokenizer()
        self.model = build_model(model_config(self.tokenizer.get_vocab_size()))
        self.optimiser = Optimiser(self.model)
        self.average = RunningMean(self.model)
        self.clock = Clock(options.minutes * 60.0, scale=options.scale)
        self.step, self.tokens = 0, 0
        if options.resume:
            self._resume()

    def _tokenizer(self) -> Tokenizer:
        if not (self.out / "tokenizer.json").exists():
            texts = tokenizer_texts(self.options.data, self.passages)
            save_tokenizer(train_tokenizer(texts, VOCABULARY), self.out, CONTEXT)
        return load_tokenizer(self.out)

    def _resume(self) -> None:
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.model.load_state_dict(state["average"])
        self.optimiser.load(state["optimiser"])
        progress = state["progress"]
        self.clock = replace(self.clock, before_s=progress["elapsed_s"])
        self.step, self.tokens = int(progress["step"]), int(progress["tokens"])
        self.rng.seed(self.options.seed + self.step)

    def _save(self) -> None:
        progress = {
            "elapsed_s": self.clock.elapsed_s,
            "step": float(self.step),
            "tokens": float(self.tokens),
        }
        state: dict[str, object] = {
            "model": self.model.state_dict(),
            "average": self.average.model.state_dict(),
            "optimiser": self.optimiser.state(),
            "progress": progress,
        }
        save_checkpoint(self.out / "checkpoint.pt", state)
        export_model(self.average.model, self.out)

    def _source(self) -> Iterator[Example]:
        """Copying until its minutes are over, then the mixture of tasks."""
        copying = copying_examples(self.tokenizer, self.passages, self.rng)
        while self.clock.elapsed_s < self.options.copying_minutes * 60:
            yield next(copying)
        yield from task_examples(self.tokenizer, self.options.data, self.rng, self.clock_share)

    def clock_share(self) -> float:
        """How much of the training time is over, from 0 to 1."""
        return self.clock.elapsed_s / self.clock.limit_s

    def run(self) -> None:
        """Train until the minutes are over; the last checkpoint is the result."""
        source = batches(self._source(), self.rng)
        saved = measured = self.clock.elapsed_s
        self.model.train()
        while self.clock.elapsed_s < self.clock.limit_s:
            loss, seen = train_step(self.model, self.optimiser, source, self.clock.rate())
            self.average.update(self.model)
            self.step, self.tokens = self.step + 1, self.tokens + seen
            if self.step % 10 == 0:
                self._log(loss)
            if self.clock.elapsed_s - saved > self.options.save_s:
                self._save()
                saved = self.clock.elapsed_s
            if self.clock.elapsed_s - measured > self.options.measure_s:
                self._measure()
                measured = self.clock.elapsed_s
        self._save()
        self._measure()

    def _log(self, loss: float) -> None:
        logger.info(
            "step %d  %.0f s  %.2f M tokens  loss %.3f",
            self.step, self.clock.elapsed_s, self.tokens / 1e6, loss,
        )  # fmt: skip

    def _measure(self) -> None:
        scores = quick_scores(self.average.model, self.tokenizer, self.options.data)
        logger.info("scores %s", " ".join(f"{k}={v:.3f}" for k, v in scores.items()))


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
    Trainer(options).run()


if __name__ == "__main__":
    main()
