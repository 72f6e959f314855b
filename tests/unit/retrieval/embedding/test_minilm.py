"""MiniLM's int8 graph against the same weights in float on torch."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from service.errors import ConfigurationError
from service.retrieval.embedding import MINILM, open_embedder
from service.retrieval.embedding import minilm as module
from service.retrieval.embedding.local import load_encoder
from service.retrieval.embedding.minilm import (
    minilm_embedder,
    minilm_folder,
    open_session,
    packs,
)
from service.retrieval.embedding.minilm_file import model_file
from service.retrieval.embedding.minilm_graph import build_model
from service.settings import RetrievalSettings
from tests.conftest import unavailable

pytestmark = pytest.mark.anyio

TEXTS = (
    "Norma. Norma is an opera by Vincenzo Bellini, first performed in Milan in 1831.",
    "Etna. Etna is a volcano near Catania.",
    "Who wrote the opera Norma?",
    "x",
    "Ünïcode, 日本語 and emoji 🎉 in one text.",
    "A long text about one thing and another. " * 60,
)
# sentence-transformers 6.2 on TEXTS[2]
REFERENCE = [-0.01675071, 0.05079635, -0.04485284]


@pytest.fixture(scope="module", autouse=True)
def minilm() -> None:
    if problem := minilm_embedder(MINILM, 1).problem():
        unavailable("MiniLM", problem)


def cosine(one: list[float], two: list[float]) -> float:
    return sum(a * b for a, b in zip(one, two, strict=True))


async def test_int8_is_close_to_float() -> None:
    embedder = open_embedder(RetrievalSettings())
    vectors = await embedder.embed_passages(TEXTS)
    float_vectors = load_encoder(MINILM, str(minilm_folder()), 1)(TEXTS)
    assert float_vectors[2][:3] == pytest.approx(REFERENCE, abs=1e-4)
    assert all(math.isclose(cosine(vector, vector), 1, rel_tol=1e-4) for vector in vectors)
    near = [cosine(one, two) for one, two in zip(vectors, float_vectors, strict=True)]
    assert min(near) > 0.975, near
    assert sum(near) / len(near) > 0.99, near


async def test_the_graph_in_float_is_the_model() -> None:
    from tokenizers import Tokenizer

    folder = minilm_folder()
    session = open_session(build_model(folder / "model.safetensors", quantised=False), 1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(TEXTS))
    vectors = session.run(
        None,
        {
            "ids": [item.ids for item in encoded],
            "mask": [item.attention_mask for item in encoded],
        },
    )[0].tolist()
    for mine, theirs in zip(vectors, load_encoder(MINILM, str(folder), 1)(TEXTS), strict=True):
        assert cosine(mine, theirs) > 0.99999


def test_packs_are_of_like_length_and_bounded() -> None:
    assert list(packs([])) == []
    assert list(packs([300, 5, 2000, 400, 6])) == [[1, 4, 0], [3], [2]]
    parts = list(packs([n * 37 % 250 + 3 for n in range(100)]))
    assert sorted(index for part in parts for index in part) == list(range(100))


async def test_a_text_alone_and_in_a_batch_are_alike() -> None:
    embedder = open_embedder(RetrievalSettings())
    together = await embedder.embed_passages(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        [alone] = await embedder.embed_queries([text])
        assert cosine(alone, vector) > 0.97


def test_the_file_is_made_once_and_anew_for_other_weights(tmp_path: Path) -> None:
    weights = minilm_folder() / "model.safetensors"
    made = model_file(weights, tmp_path / "cache")
    assert isinstance(made, Path)
    before = made.stat()
    assert model_file(weights, tmp_path / "cache") == made
    assert made.stat() == before
    assert list(made.parent.iterdir()) == [made]


def test_without_a_place_to_keep_it_the_model_is_made_in_memory(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    made = model_file(minilm_folder() / "model.safetensors", tmp_path / "cache")
    assert isinstance(made, bytes)


async def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEEDED", ("no_such_package",))
    embedder = minilm_embedder(MINILM, 1)
    assert "pip install 'revelator[local]'" in (embedder.problem() or "")
    with pytest.raises(ConfigurationError, match=r"no_such_package.*revelator\[local\]"):
        await embedder.embed_queries(["a"])


def test_the_weights_are_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="reinstall"):
        minilm_folder()
