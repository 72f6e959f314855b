"""Rerankers: servers that answer as vLLM and text-embeddings-inference do, and a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from aiohttp import web

from service.core.errors import BackendUnavailable, ConfigurationError, RetrievalFailure
from service.core.settings import RerankerSettings, RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.search import guard, reranking
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.search.reranking import CrossEncoder, Reranking, open_reranker
from tests.conftest import need
from tests.support.observed import Observed
from tests.support.stub_server import stubbed
from tests.support.tiny_bert import save_bert
from tests.unit.retrieval.worlds import CountingEmbedder, FakeStore, collection_of


class Stub:
    """Scores a passage by its length."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []

    async def handle(self, request: web.BaseRequest) -> web.Response:
        body = orjson.loads(await request.read())
        self.asked.append((request.path, body, request.headers.get("Authorization")))
        texts = body.get("documents") or body["texts"]
        scores = {index: float(len(text)) for index, text in enumerate(texts)}
        best_first = sorted(scores, key=lambda index: -scores[index])
        if request.path == "/v1/rerank":
            results = [{"index": i, "document": {"text": texts[i]}, "relevance_score": scores[i]}
                       for i in best_first]  # fmt: skip
            return web.json_response({"id": "rerank-1", "model": "m", "results": results})
        return web.json_response([{"index": i, "score": scores[i]} for i in best_first])


stub = stubbed(Stub)


async def scores(stub: Stub, kind: str, **settings: Any) -> list[float]:
    reranker = open_reranker(
        RerankerSettings.model_validate({"kind": kind, "url": stub.url, **settings})
    )
    try:
        return await reranker.scores("q", ["bb", "dddd", "c"])
    finally:
        await reranker.aclose()
        await reranker.aclose()


WIRES = [
    ("vllm", "/v1/rerank", {"query": "q", "documents": ["bb", "dddd", "c"],
                            "truncate_prompt_tokens": -1}),
    ("tei", "/rerank", {"query": "q", "texts": ["bb", "dddd", "c"], "truncate": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "body"), WIRES)
async def test_scores_come_back_in_the_order_of_the_passages(
    stub: Stub, kind: str, path: str, body: dict[str, Any]
) -> None:
    assert await scores(stub, kind) == [2.0, 4.0, 1.0]
    assert stub.asked == [(path, body, None)]


async def test_model_and_key_are_sent(stub: Stub) -> None:
    await scores(stub, "vllm", model="m", key="secret")
    (_, body, authorization) = stub.asked[0]
    assert (body["model"], authorization) == ("m", "Bearer secret")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kind": "tei"}, "needs `url`"),
        ({"kind": "vllm", "url": "host:8000"}, "is not an http"),
        ({"kind": "local"}, "needs `model`"),
    ],
)
def test_settings_name_the_place(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RerankerSettings.model_validate(settings)


class FakeReranker:
    """Scores by a table of titles; fails or hangs when told to."""

    def __init__(self) -> None:
        self.table = {"A": 0.1, "B": 0.2, "C": 0.9, "D": 0.2}
        self.failure: Exception | None = None
        self.delay_s = 0.0
        self.asked: list[list[str]] = []

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        self.asked.append(list(passages))
        await anyio.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        return [self.table[passage.split(".")[0]] for passage in passages]

    async def aclose(self) -> None: ...


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RETRIES", 0)
    monkeypatch.setattr(guard, "FAILURES", 2)


class World:
    def __init__(self, top_n: int = 30) -> None:
        settings = RetrievalSettings.model_validate(
            {
                "timeout_s": 1.0,
                "reranker": {"kind": "tei", "url": "http://tei", "top_n": top_n},
            }
        )
        self.reranker, self.observed = FakeReranker(), Observed()
        self.bm25 = FakeStore("tantivy", ["a", "b", "d"])
        self.retriever = HybridRetriever(
            collection_of(self.bm25, FakeStore("qdrant_edge", ["b", "c"])),
            CountingEmbedder(),
            settings,
            self.observed,
            Reranking(self.reranker, top_n, settings, self.observed),
        )

    async def ask(self, **fields: Any) -> list[str]:
        request = SearchRequest(**{"query": "q", "top_k": 3, "collection": "c", **fields})
        result = await self.retriever.search(request)
        assert result.missing == ()
        assert [hit.rank for hit in result.passages] == list(range(1, len(result.passages) + 1))
        return [hit.passage.passage_id for hit in result.passages]


async def test_hybrid_is_reordered_before_the_cut() -> None:
    world = World()
    assert await world.ask(top_k=2) == ["c", "b"]
    assert len(world.reranker.asked) == 1
    assert sorted(world.reranker.asked[0]) == ["A. text", "B. text", "C. text", "D. text"]
    assert ("reranker", False) in world.observed.searches


async def test_explicit_retrievers_keep_their_own_order() -> None:
    world = World()
    assert await world.ask(retriever="bm25") == ["a", "b", "d"]
    assert world.reranker.asked == []


async def test_top_n_bounds_what_is_scored_but_never_below_top_k() -> None:
    world = World(top_n=1)
    assert await world.ask(top_k=1) == ["b"]
    assert len(world.reranker.asked[-1]) == 1
    assert await world.ask(top_k=4) == ["c", "b", "d", "a"]


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_reranker_that_is_out_leaves_the_fused_order(how: str) -> None:
    world = World()
    if how == "fails":
        world.reranker.failure = BackendUnavailable("out")
    else:
        world.reranker.delay_s = 30
    assert [await world.ask() for _ in range(4)] == [["b", "a", "c"]] * 4
    assert len(world.reranker.asked) == 2  # then its breaker is open
    assert ("reranker", True) in world.observed.searches
    assert world.observed.states[-1] == ("reranker", "open")


# A cross-encoder of random weights, made here, read from its folder.


WORDS = "volcano etna opera a the"
PASSAGES = ["etna the volcano", "opera", "a " * 40, "the opera a volcano", "", "etna"]


def save_model(folder: Path, outputs: int = 1) -> Path:
    need("torch", "transformers")
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
    need("torch", "transformers")
    with pytest.raises(ConfigurationError, match=f"{tmp_path.name} cannot be loaded.*its folder"):
        await CrossEncoder(tmp_path).scores("q", ["p"])


async def test_a_failure_of_the_model_is_a_failure_of_ours(folder: Path) -> None:
    reranker = CrossEncoder(folder)
    reranker._model.model = lambda query, texts: [1 / 0]
    with pytest.raises(RetrievalFailure, match="division"):
        await reranker.scores("q", ["p"])
