"""Rerankers over HTTP, against a server that answers as vLLM and text-embeddings-inference do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
)
from service.core.settings import RerankerSettings
from service.retrieval.search.reranking import open_reranker
from tests.support.stub_server import stub_server


class Stub:
    """Scores a passage by its length; refuses when told to."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.wrong: bytes | None = None
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []

    async def handle(self, request: web.BaseRequest) -> web.Response:
        body = orjson.loads(await request.read())
        self.asked.append((request.path, body, request.headers.get("Authorization")))
        if self.status != 200 or self.wrong is not None:
            return web.Response(body=self.wrong or b"for a reason", status=self.status)
        texts = body.get("documents") or body["texts"]
        scores = {index: float(len(text)) for index, text in enumerate(texts)}
        best_first = sorted(scores, key=lambda index: -scores[index])
        if request.path == "/v1/rerank":
            results = [{"index": i, "document": {"text": texts[i]}, "relevance_score": scores[i]}
                       for i in best_first]  # fmt: skip
            return web.json_response({"id": "rerank-1", "model": "m", "results": results})
        return web.json_response([{"index": i, "score": scores[i]} for i in best_first])


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    made = Stub()
    async with stub_server(made.handle) as address:
        made.url = f"http://{address}"
        yield made


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
    ("status", "expected", "told"),
    [
        (401, ConfigurationError, "reranker.key"),
        (404, RetrievalFailure, "kind, url and model"),
        (422, RetrievalFailure, "for a reason"),
        (503, BackendUnavailable, "for a reason"),
    ],
)
async def test_each_refusal_is_an_error_of_ours(
    stub: Stub, status: int, expected: type[RevelatorError], told: str
) -> None:
    stub.status = status
    with pytest.raises(expected, match=told) as caught:
        await scores(stub, "tei", key="secret")
    assert type(caught.value) is expected
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize(
    "answer",
    [
        b"not json", b"{}", b"[]", b"[1, 2, 3]", b'[{"index": 0, "score": 1}]',
        b'[{"index": 0, "score": "x"}, {"index": 1, "score": 1}, {"index": 2, "score": 1}]',
        b'[{"index": 0, "score": null}, {"index": 1, "score": 1}, {"index": 2, "score": 1}]',
    ],
)  # fmt: skip
async def test_an_answer_without_all_scores_is_a_failure(stub: Stub, answer: bytes) -> None:
    stub.wrong = answer
    with pytest.raises(RetrievalFailure, match=r"did not return 3 scores.*kind"):
        await scores(stub, "tei")


async def test_scores_that_are_no_numbers_are_a_failure(stub: Stub) -> None:
    numbers = ", ".join(f'{{"index": {i}, "score": "nan"}}' for i in range(3))
    stub.wrong = f"[{numbers}]".encode()
    with pytest.raises(RetrievalFailure, match="not finite"):
        await scores(stub, "tei")


async def test_nobody_there(stub: Stub) -> None:
    stub.url = "http://127.0.0.1:9"
    with pytest.raises(BackendUnavailable, match=r"cannot be reached.*reranker\.url"):
        await scores(stub, "vllm")


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
