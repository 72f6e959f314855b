"""Checkpoints of transformers, against its own models with the same weights."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need

torch = need("torch", "transformers")
from safetensors.torch import save_file

from service.core.errors import LoopUnavailable
from service.encoders.base import Tag
from service.encoders.checkpoint import CheckpointCard, Kind
from service.encoders.efficientrag import Labeler, QueryFilter
from service.encoders.in_process import minilm_tokenizer
from service.encoders.inputs import encode_passages, encode_query, marked_text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]
PASSAGES = ["Norma: an opera by Vincenzo Bellini", "Aida: by Verdi, first heard in Cairo in 1871"]
TOKENIZER = minilm_tokenizer()


def config() -> Any:
    from transformers import DebertaV2Config

    return DebertaV2Config(
        vocab_size=30522, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=512, type_vocab_size=0,
        relative_attention=True, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        position_biased_input=False, position_buckets=32, share_att_key=True, num_labels=3,
    )  # fmt: skip


def write(folder: Path, kind: Kind, weights: dict[str, Any], tags: int | None = None) -> Path:
    save_file(
        {name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors"
    )
    config().save_pretrained(folder)
    TOKENIZER.save(str(folder / "tokenizer.json"))
    card = CheckpointCard(
        kind=kind, tags=tags, max_pieces=384, tokenizer="file", base_model="a small DeBERTa"
    )  # type: ignore[arg-type]
    (folder / "checkpoint.json").write_text(card.model_dump_json(), encoding="utf-8")
    return folder


def models() -> tuple[Any, Any]:
    """One encoder under transformers' own heads for sequences and for tokens."""
    from transformers import DebertaV2ForSequenceClassification, DebertaV2ForTokenClassification

    torch.manual_seed(3)
    sequences = DebertaV2ForSequenceClassification(config()).eval()
    tokens = DebertaV2ForTokenClassification(config()).eval()
    tokens.classifier = torch.nn.Linear(16, 2)
    tokens.deberta.load_state_dict(sequences.deberta.state_dict())
    return sequences, tokens


def labeler_weights(sequences: Any, tokens: Any) -> dict[str, Any]:
    """Under the names of the official code."""
    renamed = {
        name.replace("classifier.", "sequence_classifier."): value
        for name, value in sequences.state_dict().items()
    }
    heads = {f"token_{k}": v for k, v in tokens.state_dict().items() if k.startswith("classifier")}
    return renamed | heads


async def test_a_labeler_answers_as_its_weights_do(tmp_path: Path) -> None:
    sequences, tokens = models()
    folder = write(tmp_path, "labeler", labeler_weights(sequences, tokens), tags=3)
    labels = await Labeler(folder, 1).label("Who wrote it?", PASSAGES)
    for label, encoded in zip(
        labels, encode_passages(TOKENIZER, "Who wrote it?", PASSAGES), strict=True
    ):
        ids = torch.tensor([encoded.ids])
        with torch.inference_mode():
            tags = sequences(input_ids=ids).logits.softmax(-1)[0]
            marks = tokens(input_ids=ids).logits[0]
        assert label.tag is Tag(int(tags.argmax()))
        assert label.probability == pytest.approx(float(tags.max()), abs=1e-5)
        assert label.info == marked_text(encoded, (marks[:, 1] - marks[:, 0]).tolist())
    assert any(label.info for label in labels)


async def test_a_filter_is_what_transformers_saves(tmp_path: Path) -> None:
    _, tokens = models()
    folder = write(tmp_path, "filter", tokens.state_dict())
    kept = await QueryFilter(folder, 1).filter("Who wrote it?", ["Norma Vincenzo Bellini"])
    encoded = encode_query(TOKENIZER, "Who wrote it?", ["Norma Vincenzo Bellini"])
    with torch.inference_mode():
        marks = tokens(input_ids=torch.tensor([encoded.ids])).logits[0]
    assert kept == marked_text(encoded, (marks[:, 1] - marks[:, 0]).tolist())
    assert kept


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop("token_classifier.weight"), "token_classifier.weight"),
        (lambda weights: weights.pop("deberta.encoder.rel_embeddings.weight"), "deberta.encoder"),
        (
            lambda weights: weights.update({"sequence_classifier.weight": torch.zeros(2, 16)}),
            "2 tags",
        ),
    ],
)
async def test_weights_that_do_not_fit_are_named(tmp_path: Path, change: Any, said: str) -> None:
    weights = labeler_weights(*models())
    change(weights)
    opened = Labeler(write(tmp_path, "labeler", weights, tags=3), 1)
    assert opened.problem() is None
    with pytest.raises(LoopUnavailable, match=said):
        await opened.label("Who?", PASSAGES)


async def test_weights_without_a_configuration_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "labeler", labeler_weights(*models()), tags=3)
    (folder / "config.json").unlink()
    assert "config.json is missing beside it" in str(Labeler(folder, 1).problem())
