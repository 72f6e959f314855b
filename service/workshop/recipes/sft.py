"""`train sft` trains a causal language model on its own turns in chats, by LoRA or in full.

Works with any transformers model that has a fast tokenizer. The result is an adapter (`revelator
worker MODEL --lora NAME=OUT`) or, with `merge` or without LoRA, a complete model.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from datasets import Dataset
from peft import LoraConfig, PeftModel
from pydantic import Field
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTTrainer

from service.core.errors import ConfigurationError, InvalidRequest
from service.core.settings.base import Section
from service.engines.base import Message
from service.engines.encoding import PromptEncoder
from service.workshop.recipes.run import Recipe, Score, TrainingRun
from service.workshop.rows import TrainingRow

UNCOUNTED = -100
MOST_OF_TASK = 60_000  # rows (METHODS.md §1.5)
SCORED = 200  # most held-out rows that are answered at the end
CHAT_TEMPLATES = {name: Path(__file__).with_name(f"{name}.jinja") for name in ("turns", "raw")}


class SftSettings(Section):
    model: str = Field(description="The base model: a folder, or a name on the hub.")
    longest: int = Field(
        2048, ge=16, description="Maximum number of tokens of a row. Longer rows are omitted."
    )
    lora_rank: int = Field(
        8, ge=0, description="Rank of LoRA's matrices. With 0, all weights are trained."
    )
    lora_alpha: int = Field(16, ge=1)
    merge: bool = Field(
        False, description="Write the whole model, with the adapter merged into it."
    )
    chat_template: str | None = Field(
        None,
        description="Jinja file used instead of the model's template, `turns` for plain turns, or "
        "`raw` for the messages as one text.",
    )


# `hanrag` (METHODS.md §1.5) and `autorag` (METHODS.md §2.5) follow the papers, except that `hanrag`
# has a causal base model. Values that the papers do not state are our own. `searcher` learns the
# form of a protocol (METHODS.md §10).
PRESETS: dict[str, dict[str, Any]] = {
    "hanrag": {
        "num_train_epochs": 1, "learning_rate": 1e-4, "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8,
        "lora_rank": 8, "lora_alpha": 16, "longest": 2048, "bf16": True,
    },
    "autorag": {
        "num_train_epochs": 5, "learning_rate": 1e-5, "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8,
        "lora_rank": 0, "longest": 8192, "bf16": True, "gradient_checkpointing": True,
    },
    "searcher": {
        "num_train_epochs": 2, "learning_rate": 1e-4, "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1, "per_device_train_batch_size": 8, "lora_rank": 0, "longest": 4096,
        "chat_template": "raw",
    },
    "small": {
        "num_train_epochs": 3, "learning_rate": 2e-3, "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1, "per_device_train_batch_size": 16, "lora_rank": 16, "lora_alpha": 32,
        "use_cpu": True, "bf16": False,
    },
}  # fmt: skip


def train(settings: SftSettings, run: TrainingRun) -> tuple[Any, dict[str, Score]]:
    """Train, and write the adapter or model with its tokenizer to the run's folder."""
    rows, held_out = run.rows(TrainingRow)
    encoder = PromptEncoder(_tokenizer(settings))
    encoded = token_rows(settings, rows, encoder, run.arguments.seed)
    trainer = SFTTrainer(
        model=_load_model(settings, bf16=run.arguments.bf16),
        args=run.arguments,
        train_dataset=Dataset.from_list([row._asdict() for row in encoded]),
        processing_class=encoder.tokenizer,
        peft_config=_lora(settings),
    )
    if not run.fit(trainer):
        return trainer, {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    scores = reply_scores(model, encoder, held_out)
    if settings.merge and isinstance(model, PeftModel):
        model = model.merge_and_unload()
    model.save_pretrained(run.folder)
    (run.folder / "README.md").unlink(missing_ok=True)  # an empty model card that peft writes
    encoder.tokenizer.save_pretrained(run.folder)
    return trainer, scores


def token_rows(
    settings: SftSettings, rows: Sequence[TrainingRow], encoder: PromptEncoder, seed: int
) -> list[TokenRow]:
    """Return the rows of one epoch as ids and labels, mixed over tasks.

    Prints the number of rows that are left out as too long. Raises InvalidRequest if none is left
    or the model's template rejects one.
    """
    order = mix([row.task for row in rows], seed=seed, cap=MOST_OF_TASK)
    encoded: dict[int, list[TokenRow]] = {}
    for place in set(order):
        try:
            encoded[place] = encode_chat(encoder, rows[place])
        except ValueError as error:
            raise InvalidRequest(f"row {rows[place].provenance.item}: {error}") from None
    mixed = [row for place in order for row in encoded[place]]
    kept = [row for row in mixed if len(row.input_ids) <= settings.longest]
    if len(kept) < len(mixed):
        left_out = f"{len(mixed) - len(kept)} of {len(mixed)} rows"
        typer.echo(f"{left_out} left out: over {settings.longest} tokens")
    if not kept:
        raise InvalidRequest(f"every row is longer than {settings.longest} tokens (longest)")
    return kept


def _open(kind: Any, model: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(model, **options)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        raise ConfigurationError(f"model: {model} cannot be loaded: {reason}") from None


def _tokenizer(settings: SftSettings) -> Any:
    tokenizer = _open(AutoTokenizer, settings.model)
    if settings.chat_template is not None:
        path = CHAT_TEMPLATES.get(settings.chat_template, Path(settings.chat_template))
        try:
            tokenizer.chat_template = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"chat_template: {path} cannot be read: {error}") from None
    return tokenizer


def _load_model(settings: SftSettings, *, bf16: bool) -> Any:
    """Load float32 weights for full training; with LoRA, load bfloat16 if the arguments choose
    it."""
    frozen = settings.lora_rank and bf16
    return _open(
        AutoModelForCausalLM, settings.model, dtype=torch.bfloat16 if frozen else torch.float32
    )


def _lora(settings: SftSettings) -> LoraConfig | None:
    if not settings.lora_rank:
        return None
    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


RECIPE: Recipe[SftSettings] = Recipe(
    settings=SftSettings,
    presets=PRESETS,
    train=train,
    arguments="trl:SFTConfig",
    fixed={"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None},
)


def reply_scores(
    model: Any, encoder: PromptEncoder, rows: Sequence[TrainingRow]
) -> dict[str, Score]:
    """Return how often greedy decoding writes the last reply exactly, over all rows and by task, on
    at most `SCORED` random rows.

    The chance level is that of always giving a task's most frequent reply.
    """
    if not rows:
        return {}
    drawn = random.Random(0).sample(list(rows), min(SCORED, len(rows)))
    tasks: dict[str, list[tuple[str, bool]]] = {}
    for row in drawn:
        made = row.messages[-1].content.strip(), _writes(model, encoder, row)
        tasks.setdefault(row.task, []).append(made)
    scores = {"exact": _score(list(tasks.values()))}
    if len(tasks) > 1:
        scores |= {f"exact, {task}": _score([made]) for task, made in sorted(tasks.items())}
    return scores


def _score(tasks: Sequence[Sequence[tuple[str, bool]]]) -> Score:
    rows = sum(map(len, tasks))
    guessed = sum(Counter(reply for reply, _ in made).most_common(1)[0][1] for made in tasks)
    return Score(sum(right for made in tasks for _, right in made) / rows, guessed / rows, rows)


@torch.no_grad()
def _writes(model: Any, encoder: PromptEncoder, row: TrainingRow) -> bool:
    """Return whether each token of the last reply is the likeliest one after those before it."""
    prompt, reply = encoder.encode_turn(chat_of(row))
    logits = model(torch.tensor([prompt + reply], device=model.device)).logits[0]
    likeliest: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return likeliest == reply


# ---- rows of tokens


class TokenRow(NamedTuple):
    """The token ids of a training row. `labels` repeats the ids of trained tokens and is -100
    elsewhere."""

    input_ids: list[int]
    labels: list[int]


def encode_chat(encoder: PromptEncoder, row: TrainingRow) -> list[TokenRow]:
    """Encode a chat as the served model sees it: each prompt as when serving, followed by the
    trained reply.

    Returns several rows if the chat template renders earlier turns differently from the last one,
    for instance without their reasoning. If it has no mark for the end of a turn, only the last
    reply is taught to end. Raises ValueError if the template rejects the chat.
    """
    messages = chat_of(row)
    rows: list[TokenRow] = []
    for place, message in enumerate(row.messages):
        if not message.learn:
            continue
        prompt, reply = encoder.encode_turn(messages[: place + 1])
        before = TokenRow([], [])
        if rows and (length := _shared(rows[-1], prompt)):
            before = TokenRow(*(ids[:length] for ids in rows.pop()))
        shown = [UNCOUNTED] * (len(prompt) - len(before.labels))
        rows.append(TokenRow(prompt + reply, before.labels + shown + reply))
    return rows


def chat_of(row: TrainingRow) -> Sequence[Message]:
    """Return the row's messages in the form that `Generator` engines accept."""
    return [Message(message.role, message.content) for message in row.messages]


def _shared(before: TokenRow, prompt: list[int]) -> int:
    """Return how many tokens of a row the prompt continues: all, or all but an end of text, which
    is not in the template and so not in the prompt either; otherwise 0."""
    length = len(before.input_ids)
    for end in (length, length - 1):
        if prompt[:end] == before.input_ids[:end]:
            return end
    return 0


def mix(tasks: Sequence[str], *, seed: int, cap: int) -> list[int]:
    """Return the shuffled row indices of one epoch, with at most `cap` random rows of each task.

    `tasks` gives the task of each row.
    """
    taken: Counter[str] = Counter()
    order: list[int] = []
    for place in random.Random(seed).sample(range(len(tasks)), len(tasks)):
        taken[tasks[place]] += 1
        if taken[tasks[place]] <= cap:
            order.append(place)
    return order
