"""A cross-encoder of random weights, made here, read from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import ConfigurationError, RetrievalFailure
from service.core.settings import RerankerSettings
from service.retrieval.search import reranking
from service.retrieval.search.reranking import CrossEncoder, open_reranker
from tests.conftest import need
from tests.support.tiny_bert import save_bert

need("torch", "transformers")

WORDS = "volcano etna opera a the"
PASSAGES = ["etna the volcano", "opera", "a " * 40, "the opera a volcano", "", "etna"]


def save_model(folder: Path, outputs: int = 1) -> Path:
    kind = "BertForSequenceClassification"
    return save_bert(folder, WORDS, kind, num_labels=outputs, initializer_range=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "reranker")


def alone(folder: Path, query: str, passage: str) -> float:
    """What the library itself gives for one pair."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        inputs = tokenizer([query], [passage], truncation=True, max_length=32, return_tensors="pt")
        return float(model(**inputs).logits[0, 0])


async def test_scores_are_the_models_in_the_order_of_the_passages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reranking, "BATCH", 2)
    settings = RerankerSettings(kind="local", model=str(folder))
    found = await open_reranker(settings).scores("volcano", PASSAGES)
    assert found == pytest.approx([alone(folder, "volcano", each) for each in PASSAGES], abs=1e-4)
    assert len(set(found)) == len(PASSAGES)


async def test_a_model_of_several_outputs_is_refused(tmp_path: Path) -> None:
    reranker = CrossEncoder(save_model(tmp_path / "classes", outputs=3))
    with pytest.raises(ConfigurationError, match="has 3 outputs"):
        await reranker.scores("q", ["p"])


async def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path.name} cannot be loaded.*its folder"):
        await CrossEncoder(tmp_path).scores("q", ["p"])


async def test_a_failure_of_the_model_is_a_failure_of_ours(folder: Path) -> None:
    reranker = CrossEncoder(folder)
    reranker._model.model = lambda query, texts: [1 / 0]
    with pytest.raises(RetrievalFailure, match="division"):
        await reranker.scores("q", ["p"])
