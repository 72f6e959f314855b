"""Fine-tuning a tiny model: the batch that trains, what comes out, what is refused."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch", "transformers")

from service.core.errors import ConfigurationError, InvalidRequest
from service.workshop.recipes.recipe import TrainingRun
from service.workshop.recipes.run import run_recipe
from tests.stubs.tiny_model import save_tiny_model

pytestmark = pytest.mark.usefixtures("train_extra")


def rows(count: int, *, held_out: bool = False) -> list[dict[str, Any]]:
    title = {True: "Title 21", False: "Title 0"}[held_out]
    source = {"pipeline": "t", "teacher": "rules", "item": "7", "titles": [title]}
    return [
        {
            "task": ("route", "relevance")[n % 2],
            "question": f"Where is {n}",
            "provenance": source | {"answer_title": title},
            "messages": [
                {"role": "user", "content": f"Question: Where is {n}"},
                {"role": "assistant", "content": ("single", "true")[n % 2], "learn": True},
            ],
        }
        for n in range(count)
    ]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    from service.workshop.facts.splits import is_held_out
    from service.workshop.recipes.sft import SftSettings

    assert is_held_out("Title 21") > is_held_out("Title 0")
    save_tiny_model(tmp_path / "model", spread=0.1)
    return SftSettings(
        data=(write(tmp_path / "train.jsonl", rows(12)),),
        held_out=(write(tmp_path / "test.jsonl", rows(6, held_out=True)),),
        model=str(tmp_path / "model"), steps=3, batch=4, rows_at_once=2, learning_rate=1e-2,
        lora_rank=4, device="cpu", log_every=1,
    )  # fmt: skip


def train(settings: Any, folder: Path, said: list[str] | None = None) -> dict[str, Any]:
    from service.workshop.recipes.sft import RECIPE

    return run_recipe(
        RECIPE, settings, TrainingRun(folder, say=(said if said is not None else []).append)
    )


def changed(settings: Any, **values: Any) -> Any:
    return settings.model_copy(update=values)


def test_the_batch_that_trains_counts_replies_alone(settings: Any, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTTrainer

    from service.engines.encoding import PromptEncoder
    from service.workshop.facts.rows import TrainingRow
    from service.workshop.recipes import sft

    encoder = PromptEncoder(AutoTokenizer.from_pretrained(settings.model))
    chats = [TrainingRow.model_validate(row) for row in rows(4)]
    encoded = sft.token_rows(settings, chats, encoder, TrainingRun(tmp_path))
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings.model),
        args=sft.sft_arguments(settings, TrainingRun(tmp_path)),
        train_dataset=Dataset.from_list([row._asdict() for row in encoded]),
        processing_class=encoder.tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["labels"].shape == batch["input_ids"].shape
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        said = labels[labels != -100]
        assert encoder.tokenizer.decode(said).strip() in {"single</s>", "true</s>"}
        assert torch.equal(ids[labels != -100], said)


def test_an_adapter_comes_out(settings: Any, tmp_path: Path) -> None:
    need("peft")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    record = train(settings, tmp_path / "run")
    assert record["scores"]["exact"]["rows"] == 6
    assert record["scores"]["exact, route"] == record["scores"]["exact, route"] | {"chance": 1.0}
    base = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(base, tmp_path / "run")
    ids = torch.tensor([[1, 300, 301]])
    with tuned.disable_adapter():
        before = tuned(ids).logits
    assert not torch.allclose(before, tuned(ids).logits, atol=1e-4)


@pytest.mark.parametrize("values", [{"merge": True}, {"lora_rank": 0}, {"precision": "bf16"}])
def test_other_outcomes(settings: Any, tmp_path: Path, values: dict[str, Any]) -> None:
    train(changed(settings, **values), tmp_path / "run")
    name = "adapter_model.safetensors" if "precision" in values else "model.safetensors"
    assert (tmp_path / "run" / name).exists()
    if "precision" not in values:
        from transformers import AutoModelForCausalLM

        AutoModelForCausalLM.from_pretrained(tmp_path / "run")


def test_rows_too_long_are_counted_and_none_at_all_is_refused(
    settings: Any, tmp_path: Path
) -> None:
    long = rows(1)
    long[0]["messages"][0]["content"] = "Where " * 99
    write(settings.data[0], rows(12) + long)
    said: list[str] = []
    train(changed(settings, longest=64), tmp_path / "run", said)
    assert "1 of 13 rows left out: over 64 tokens" in said
    write(settings.data[0], long)
    with pytest.raises(InvalidRequest, match="every row is longer than 64 tokens"):
        train(changed(settings, longest=64), tmp_path / "other")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "/no/such/model"}, "model: /no/such/model cannot be loaded"),
        ({"precision": "fp16"}, "precision: fp16"),
    ],
)
def test_what_cannot_be_is_said(
    settings: Any, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        train(changed(settings, **values), tmp_path / "run")


def test_presets_are_the_papers() -> None:
    from service.workshop.recipes.recipe import read_settings
    from service.workshop.recipes.sft import PRESETS, SftSettings

    hanrag, autorag, small = (
        read_settings(SftSettings, PRESETS, preset=name, flags={"model": "base"})
        for name in ("hanrag", "autorag", "small")
    )
    assert (hanrag.learning_rate, hanrag.epochs, hanrag.warm_up) == (1e-4, 1, 0.1)
    assert hanrag.lora_rank > 0 == autorag.lora_rank
    assert (autorag.learning_rate, autorag.epochs, autorag.longest) == (1e-5, 5, 8192)
    assert small.device == "cpu"


def test_a_base_must_be_named() -> None:
    from service.workshop.recipes.recipe import read_settings
    from service.workshop.recipes.sft import PRESETS, SftSettings

    said = "model: this setting is required; add --set model=VALUE"
    with pytest.raises(ConfigurationError, match=said):
        read_settings(SftSettings, PRESETS, preset="small")


def test_an_encoder_decoder_is_refused_before_anything_is_loaded(
    settings: Any, tmp_path: Path
) -> None:
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path / "t5")  # no weights, no tokenizer
    with pytest.raises(ConfigurationError, match=r"is an encoder-decoder \(t5\).*causal"):
        train(changed(settings, model=str(tmp_path / "t5")), tmp_path / "run")
