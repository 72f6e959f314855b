"""The part of `train sft` with lean = true: from token rows to a model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from service.core.errors import ConfigurationError
from service.engines.encoding import PromptEncoder
from service.workshop.lean.batches import batches_of
from service.workshop.lean.families import Family, families_of
from service.workshop.lean.loop import Loop, Plan
from service.workshop.lean.network import LeanLlama, Lora
from service.workshop.recipes.chats import TokenRow
from service.workshop.recipes.recipe import LossPoint, Run
from service.workshop.recipes.settings import TrainerSettings


class LeanPlan(TrainerSettings):
    """The settings that this part reads; those of `train sft` have them all."""

    longest: int
    batch_tokens: int
    cool_down: float
    save_minutes: float | None
    threads: int | None


def fit_lean(
    settings: LeanPlan,
    model: Any,
    lora: LoraConfig | None,
    rows: Sequence[TokenRow],
    encoder: PromptEncoder,
    run: Run,
) -> tuple[list[LossPoint], Any]:
    """The losses and `model` (transformers'), trained; under `lora` the model of peft around it.

    Raises ConfigurationError for a model or an adapter that the lean loop cannot train, Stopped.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)  # of the adapter's first matrices
    lean = LeanLlama(model, None if lora is None else lean_lora(lora))
    trained = model if lora is None else get_peft_model(model, lora)

    def export(folder: Path) -> None:
        lean.export(model)
        trained.to(torch.bfloat16).save_pretrained(str(folder))
        encoder.tokenizer.save_pretrained(folder)

    families = families_of(rows, settings.longest)
    run.say(f"{len(rows)} rows in {len(families)} sequences of {sum(map(len, families)):,} tokens")
    losses = Loop(lean, families, lean_plan(settings, families), run, export).fit()
    lean.export(model)
    return losses, trained.to(torch.bfloat16)


def lean_lora(config: LoraConfig) -> Lora:
    """Raises ConfigurationError for an adapter of another kind."""
    if config.lora_dropout or config.target_modules != "all-linear":
        raise ConfigurationError(
            "lora_targets, lora_dropout: lean = true adapts all linear layers, without dropout; "
            "leave both unset, or set lean = false"
        )
    return Lora(config.r, config.lora_alpha / config.r)


def lean_plan(settings: LeanPlan, families: Sequence[Family]) -> Plan:
    lengths = [len(family) for family in families]
    one = len(batches_of(lengths, settings.batch_tokens, f"{settings.seed}:0"))
    steps = settings.steps or max(1, round(one * settings.epochs))

    def updates(value: float) -> int:
        return round(value * steps) if value < 1 else round(value)

    return Plan(
        steps=steps, tokens=settings.batch_tokens, learning_rate=settings.learning_rate,
        warm_up=updates(settings.warm_up), cool_down=updates(settings.cool_down),
        weight_decay=settings.weight_decay, clip=settings.clip, seed=settings.seed,
        save_every=settings.save_every, save_minutes=settings.save_minutes,
        log_every=settings.log_every,
    )  # fmt: skip
