"""Any BERT-like model: pooling, normalisation, prefixes and length, on a tiny random BERT."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import ConfigurationError
from service.core.settings import EmbeddingSettings, RetrievalSettings
from service.retrieval.embedding.contract import PRESETS, EmbeddingContract
from service.retrieval.embedding.embedders import load_transformers, open_embedder
from tests.conftest import need
from tests.support.tiny_bert import SIZE, save_bert

need("torch", "transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = "query passage : norma is an opera etna volcano"
    return save_bert(tmp_path_factory.mktemp("tiny-bert"), words)


def reference(folder: Path, text: str, max_length: int = 32) -> Any:
    """transformers' last layer of one text alone: (tokens, SIZE)."""
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder)
    inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.inference_mode():
        return model(**inputs).last_hidden_state[0]


def settings(folder: Path, **embedding: Any) -> RetrievalSettings:
    return RetrievalSettings(
        embedding_model=str(folder),
        embedding=EmbeddingSettings(**{"max_length": 32, **embedding}),
    )


@pytest.mark.parametrize("preset", ["e5-base-v2", "contriever-msmarco", "bge-base-en-v1.5"])
async def test_conventions_are_those_of_the_model(folder: Path, preset: str) -> None:
    """Of a batch with padding, each vector is the one of its text alone, pooled by hand."""
    own = PRESETS[preset]
    embedder = open_embedder(
        settings(
            folder, pooling=own.pooling, distance=own.distance,
            query_prefix=own.query_prefix, passage_prefix=own.passage_prefix,
        )
    )  # fmt: skip
    texts = ["norma", "etna is an volcano : etna"]
    for embed, prefix in (
        (embedder.embed_queries, own.query_prefix),
        (embedder.embed_passages, own.passage_prefix),
    ):
        for text, vector in zip(texts, await embed(texts), strict=True):
            hidden = reference(folder, prefix + text)
            expected = hidden[0] if own.pooling == "cls" else hidden.mean(0)
            if own.normalise:
                expected = expected / expected.norm()
            assert vector == pytest.approx(expected.tolist(), abs=1e-5)
    [vector] = await embedder.embed_queries(["norma"])
    assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-4) == own.normalise


async def test_what_is_longer_is_cut(folder: Path) -> None:
    embedder = open_embedder(settings(folder, max_length=8))
    [vector] = await embedder.embed_queries(["etna " * 50])
    expected = reference(folder, "etna " * 50, max_length=8).mean(0)
    assert vector == pytest.approx((expected / expected.norm()).tolist(), abs=1e-5)


async def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="embedding_model: there is no model in"):
        open_embedder(settings(tmp_path, dimension=SIZE))
    (tmp_path / "config.json").write_text("{}")
    embedder = open_embedder(settings(tmp_path, dimension=SIZE))
    with pytest.raises(ConfigurationError, match=r"cannot be loaded.*NAME=FOLDER"):
        await embedder.embed_queries(["a"])


def test_a_model_of_another_size_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="has vectors of size 16, but 8 was expected"):
        load_transformers(EmbeddingContract(model="m", dimension=8), str(folder), 1)
