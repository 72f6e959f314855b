"""Every recipe: it learns, an interrupted run ends like an uninterrupted one, and what it writes
serves."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import need

torch = need("torch", "transformers", "onnx", "onnxscript")

from safetensors.numpy import load_file
from transformers import Trainer

from service.core.domain import Passage
from service.core.errors import ConfigurationError
from service.encoders.checkpoint import read_card
from service.encoders.efficientrag import Labeler, QueryFilter
from service.encoders.extractor import Extractor
from service.encoders.router import load_head
from service.workshop.recipes.labels import TAG_OF
from service.workshop.recipes.run import POINTS, last_point, train_recipe
from tests.stubs.tiny_model import save_tiny_model
from tests.unit.workshop.recipes.rows import write_data, write_encoder

pytestmark = pytest.mark.usefixtures("train_extra")
STEPS = 12
COMMON = (
    f"max_steps={STEPS}", "save_steps=4", "logging_steps=1", "use_cpu=true", "bf16=false",
    "per_device_train_batch_size=8",
)  # fmt: skip
OWN: dict[str, tuple[str, ...]] = {
    "sft": ("lora_rank=0", "learning_rate=0.01", "gradient_checkpointing=false"),
    "router": ("learning_rate=0.02",),
    "labeler": ("learning_rate=0.02", "freeze_embeddings=false", "longest=32", "dropout=0.1"),
    "filter": ("learning_rate=0.02", "freeze_embeddings=false", "longest=32"),
    "extractor": ("learning_rate=0.01", "head_rate=0.01", "layers=2", "frozen=0", "longest=96"),
}
WEIGHTS = {"router": "router.safetensors"}


def base(recipe: str, folder: Path) -> tuple[str, ...]:
    if recipe == "router":
        return ()
    if recipe == "sft":
        save_tiny_model(folder / "base", spread=0.1)
        return (f"model={folder / 'base'}",)
    return (f"base={write_encoder(folder / 'base')}",)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("recipe", OWN)
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, held_out = write_data(recipe, tmp_path)
    options: dict[str, Any] = {
        "data": [data], "held_out": [held_out],
        "assignments": [*COMMON, *OWN[recipe], *base(recipe, tmp_path)],
    }  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    record = train_recipe(recipe, out=whole, **options)
    first, last = record["losses"][0][1], record["losses"][-1][1]
    assert record["losses"][-1][0] == STEPS
    assert last < first
    assert all(score["rows"] for score in record["scores"].values())
    assert json.loads((whole / "checkpoint.json").read_text()) == json.loads(json.dumps(record))
    assert not (whole / POINTS).exists()

    step, done = Trainer.training_step, [0]

    def stopping(self: Any, *arguments: Any, **more: Any) -> Any:
        done[0] += 1
        if done[0] > 6:
            raise Interrupted
        return step(self, *arguments, **more)

    monkeypatch.setattr(Trainer, "training_step", stopping)
    with pytest.raises(Interrupted):
        train_recipe(recipe, out=cut, **options)
    monkeypatch.setattr(Trainer, "training_step", step)
    assert str(last_point(cut / POINTS)).endswith("checkpoint-4")
    again = train_recipe(recipe, out=cut, **options)
    assert again["losses"] == record["losses"]
    assert again["scores"] == record["scores"]
    name = WEIGHTS.get(recipe, "model.safetensors")
    if (whole / name).exists():
        one, other = load_file(whole / name), load_file(cut / name)
        assert all((one[key] == other[key]).all() for key in one)
    assert train_recipe(recipe, out=cut, **options) == again  # not trained again


async def read_all(recipe: str, served: Path, rows: list[dict[str, Any]]) -> int:
    """Return the number of rows that the served encoder gets wholly right."""
    right = 0
    for row in rows:
        if recipe == "labeler":
            found = await Labeler(served, 1).label(row["query"], [row["passage"]])
            right += found[0].tag == TAG_OF[row["tag"]]
        else:
            query = await QueryFilter(served, 1).filter(row["query"], row["infos"])
            marks = zip(row["words"], row["labels"], strict=True)
            right += query == " ".join(word for word, label in marks if label)
    return right


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")  # transformers' DeBERTa uses it
@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
@pytest.mark.parametrize("recipe", ["labeler", "filter"])
def test_encoders_of_any_kind_serve_what_they_learned(
    recipe: Any, kind: str, tmp_path: Path
) -> None:
    """The exported model gives what the trained one scored."""
    data, held_out = write_data(recipe, tmp_path, 200)
    record = train_recipe(
        recipe, data=[data], held_out=[held_out], out=tmp_path / "run",
        assignments=[
            *COMMON, *OWN[recipe], "max_steps=60", "save_steps=100",
            f"base={write_encoder(tmp_path / 'base', kind)}",
        ],
    )  # fmt: skip
    served = tmp_path / "run" / "served"
    card = read_card(served, recipe)
    assert (card.base_model, card.max_pieces, card.tokenizer) == ("base", 32, "file")
    rows = [json.loads(line) for line in held_out.read_text().splitlines()]
    right = anyio.run(read_all, recipe, served, rows)
    name = "tag_accuracy" if recipe == "labeler" else "exact_query"
    assert right / len(rows) == pytest.approx(record["scores"][name]["value"], abs=0.1)
    assert record["scores"][name]["value"] > 0.7


def test_a_trained_reader_and_head_serve(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data, held_out = write_data("extractor", tmp_path / "data")
    options = [*COMMON, *OWN["extractor"], *base("extractor", tmp_path)]
    out = tmp_path / "r"
    train_recipe("extractor", data=[data], held_out=[held_out], out=out, assignments=options)
    text = "Some like Paris more. It lives in Rome now."
    passages = [Passage("1", "Entry", text)]
    reading = anyio.run(Extractor(out).read, "Where?", passages)
    assert reading.answer in text
    # Its weights are a base for the next training.
    options[-1] = f"base={out}"
    record = train_recipe("extractor", data=[data], out=tmp_path / "r2", assignments=options)
    assert record["scores"] == {}

    data, _ = write_data("router", tmp_path)
    train_recipe("router", data=[data], out=tmp_path / "h", assignments=[*COMMON, "layers=2"])
    head = load_head(tmp_path / "h")
    assert head.card.layers == 2
    assert 0.05 < head.card.temperature < 20


@pytest.mark.parametrize(
    ("recipe", "config", "said"),
    [
        ("labeler", None, r"base: .*tokenizer\.json is missing"),
        ("filter", "{}", r"base: .* has no encoder to open"),
        ("extractor", "{}", r"base: .* has no encoder to start from"),
    ],
)
def test_a_base_without_an_encoder_is_named(
    recipe: str, config: str | None, said: str, tmp_path: Path
) -> None:
    data, _ = write_data(recipe, tmp_path)
    folder = write_encoder(tmp_path / "base")
    (folder / ("config.json" if config else "tokenizer.json")).unlink()
    if config:
        (folder / "config.json").write_text(config)
    with pytest.raises(ConfigurationError, match=said):
        train_recipe(recipe, data=[data], out=tmp_path / "out", assignments=[f"base={folder}"])
