"""Embeddings over HTTP, against a server on a real socket that answers as vLLM, TEI and OpenAI."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import web

from service.core.errors import (
    ConfigurationError,
)
from service.core.settings import EmbeddingSettings
from service.retrieval.embedding import http
from service.retrieval.embedding.contract import PRESETS, EmbeddingContract, Vector
from service.retrieval.embedding.http import HttpEmbedder, shortened
from tests.stubs.closing_server import ClosingServer
from tests.support.stub_server import stubbed

CONTRACT = EmbeddingContract(
    model="m", dimension=2, query_prefix="query: ", passage_prefix="passage: "
)


class Stub:
    """The vector of a text is (its length, 1); answers come last text first."""

    def __init__(self) -> None:
        self.url = ""
        self.vector: Vector | None = None
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []

    async def handle(self, request: web.BaseRequest) -> web.Response:
        body = orjson.loads(await request.read())
        self.asked.append((request.path, body, request.headers.get("Authorization")))
        rows = []
        for index, text in reversed(list(enumerate(body["input"]))):
            vector: Any = self.vector or [float(len(text)), 1.0]
            rows.append({"object": "embedding", "index": index, "embedding": vector})
        return web.json_response({"object": "list", "model": "m", "data": rows})


stub = stubbed(Stub, "http://{}/v1")


def embedder_of(
    stub: Stub, contract: EmbeddingContract = CONTRACT, location: str = "", **settings: Any
) -> HttpEmbedder:
    own = EmbeddingSettings(url=stub.url, **settings)
    return HttpEmbedder(contract, own, location=location)


def unit(length: int) -> Vector:
    norm = (length**2 + 1) ** 0.5
    return [length / norm, 1 / norm]


async def test_vectors_come_in_the_order_of_the_texts(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BATCH", 2)
    embedder = embedder_of(stub, key="secret", location="served")
    try:
        vectors = await embedder.embed_passages(["a", "bbb", "cc"])
        expected = [unit(len("passage: " + text)) for text in ("a", "bbb", "cc")]
        for vector, wanted in zip(vectors, expected, strict=True):
            assert vector == pytest.approx(wanted, rel=1e-6)
        assert sorted(tuple(body["input"]) for _, body, _ in stub.asked) == [
            ("passage: a", "passage: bbb"), ("passage: cc",),
        ]  # fmt: skip
        await embedder.embed_queries(["q"])
        path, body, key = stub.asked[-1]
        assert (path, key) == ("/v1/embeddings", "Bearer secret")
        assert body == {"model": "served", "input": ["query: q"], "encoding_format": "float"}
        assert await embedder.embed_queries([]) == []
    finally:
        await embedder.aclose()
        await embedder.aclose()


async def test_what_the_server_normalises_must_be_meant_so(stub: Stub) -> None:
    contriever = PRESETS["contriever"].model_copy(update={"dimension": 2})
    embedder = embedder_of(stub, contriever)
    try:
        assert await embedder.embed_queries(["four"]) == [[4.0, 1.0]]
        stub.vector = [0.6, 0.8]
        with pytest.raises(ConfigurationError, match="normalises vectors, but facebook/contriever"):
            await embedder.embed_queries(["four"])
    finally:
        await embedder.aclose()


def test_a_text_is_cut_at_a_word_to_what_the_model_reads() -> None:
    words = "opera " * 40
    assert shortened("query: opera", 16) == "query: opera"
    assert shortened(words, None) == words
    # 16 less two marks, less the prefix's two pieces (`query` and `:`)
    assert shortened("query: " + words, 16) == "query: " + " ".join(["opera"] * 12)
    assert shortened("query: " + "x" * 90, 16) == "query: " + "x" * 12


async def test_a_batch_that_meets_a_closed_connection_is_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "BATCH", 1)
    resent = []
    body = b'{"data": [{"index": 0, "embedding": [0.6, 0.8]}]}'
    async with ClosingServer(body, together=2) as server:
        settings = EmbeddingSettings(url=server.url)
        embedder = HttpEmbedder(CONTRACT, settings, lambda: resent.append(1))
        try:
            await embedder.embed_passages(["a", "b"])
            assert await embedder.embed_queries(["q"]) == [pytest.approx([0.6, 0.8])]
        finally:
            await embedder.aclose()

    assert len(resent) == 1
