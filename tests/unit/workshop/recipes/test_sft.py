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
from service.workshop.recipes import sft
from service.workshop.recipes.run import train_recipe
from service.workshop.splits import is_held_out
from tests.stubs.tiny_model import save_tiny_model

pytestmark = pytest.mark.usefixtures("train_extra")
COMMON = (
    "max_steps=3", "per_device_train_batch_size=4", "learning_rate=0.01", "lora_rank=4",
    "use_cpu=true", "bf16=false",
)  # fmt: skip


def rows(count: int, *, held_out: bool = False) -> list[dict[str, Any]]:
    title = {True: "Title 21", False: "Title 0"}[held_out]
    source = {"pipeline": "t", "teacher": "rules", "item": "7", "titles": [title]}
    return [
        {
            "task": ("route", "relevance")[n % 2],
            "question": f"Where is {n}",
            "provenance": source | {"answer_titles": [title]},
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
def data(tmp_path: Path) -> dict[str, Any]:
    assert is_held_out("Title 21") > is_held_out("Title 0")
    save_tiny_model(tmp_path / "model", spread=0.1)
    return {
        "data": [write(tmp_path / "train.jsonl", rows(12))],
        "held_out": [write(tmp_path / "test.jsonl", rows(6, held_out=True))],
    }


def train(data: dict[str, Any], folder: Path, *assignments: str) -> dict[str, Any]:
    model = f"model={folder.parent / 'model'}"
    return train_recipe("sft", out=folder, assignments=[*COMMON, model, *assignments], **data)


def test_an_adapter_comes_out(data: Any, tmp_path: Path) -> None:
    need("peft")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    record = train(data, tmp_path / "run")
    assert record["scores"]["exact"]["rows"] == 6
    assert record["scores"]["exact, route"] == record["scores"]["exact, route"] | {"chance": 1.0}
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tuned = PeftModel.from_pretrained(base, tmp_path / "run")
    ids = torch.tensor([[1, 300, 301]])
    with tuned.disable_adapter():
        before = tuned(ids).logits
    assert not torch.allclose(before, tuned(ids).logits, atol=1e-4)


@pytest.mark.parametrize("values", ["merge=true", "lora_rank=0", "bf16=true"])
def test_other_outcomes(data: Any, tmp_path: Path, values: str) -> None:
    train(data, tmp_path / "run", values)
    name = "adapter_model.safetensors" if "bf16" in values else "model.safetensors"
    assert (tmp_path / "run" / name).exists()
    if "bf16" not in values:
        from transformers import AutoModelForCausalLM

        AutoModelForCausalLM.from_pretrained(tmp_path / "run")


def test_rows_too_long_are_counted_and_none_at_all_is_refused(
    data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = rows(1)
    long[0]["messages"][0]["content"] = "Where " * 99
    write(data["data"][0], rows(12) + long)
    train(data, tmp_path / "run", "longest=64")
    assert "1 of 13 rows left out: over 64 tokens" in capsys.readouterr().out
    write(data["data"][0], long)
    with pytest.raises(InvalidRequest, match="every row is longer than 64 tokens"):
        train(data, tmp_path / "other", "longest=64")


def test_a_model_that_cannot_be_trained_is_refused(data: Any, tmp_path: Path) -> None:
    from transformers import T5Config

    with pytest.raises(ConfigurationError, match="model: /no/such/model cannot be loaded"):
        train(data, tmp_path / "run", "model=/no/such/model")
    (tmp_path / "model" / "config.json").unlink()
    T5Config().save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigurationError, match=r"cannot be loaded: .*T5Config.*CausalLM"):
        train(data, tmp_path / "other")


def test_an_epoch_has_every_row_once_and_no_more_of_a_task_than_its_cap() -> None:
    tasks = ["route"] * 900 + ["refine"] * 100
    order = sft.mix(tasks, seed=0, cap=10_000)
    assert sorted(order) == list(range(1000))
    assert order == sft.mix(tasks, seed=0, cap=10_000) != sft.mix(tasks, seed=1, cap=10_000)
    capped = [tasks[place] for place in sft.mix(tasks, seed=0, cap=200)]
    assert (capped.count("route"), capped.count("refine")) == (200, 100)
