"""What the servers of retrieval answer wrongly, or not at all, is an error of ours, which says what
to do and repeats no key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
import pytest
from aiohttp import web

from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
    StoreError,
    StoreLost,
)
from service.core.settings import EmbeddingSettings, RerankerSettings
from service.retrieval.embedding import http
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.http import HttpEmbedder
from service.retrieval.search.reranking import RerankServer
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.support.stub_server import stub_server

Client = tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[None]]]  # a call; its end


def elasticsearch(address: str, seconds: float = 30.0) -> Client:
    server = ElasticServer(f"http://user:secret@{address}", seconds)
    return lambda: server.call(lambda client: client.count(index="i")), server.aclose


def elasticsearch_without_login(address: str) -> Client:
    server = ElasticServer(f"http://{address}", 30.0)
    return lambda: server.call(lambda client: client.info()), server.aclose


def qdrant(address: str, seconds: float = 30.0, grpc_port: int = 0) -> Client:
    server = QdrantServer(f"http://:secret@{address}", seconds, grpc_port)
    return lambda: server.call(lambda client: client.count("c")), server.aclose


def qdrant_by_grpc(address: str) -> Client:
    return qdrant(address, grpc_port=int(address.partition(":")[2]))


def embeddings(address: str) -> Client:
    settings = EmbeddingSettings(url=f"http://{address}/v1", key="secret")
    server = HttpEmbedder(EmbeddingContract(model="m", dimension=2), settings)
    return lambda: server.embed_queries(["text"]), server.aclose


def reranker(address: str) -> Client:
    given = {"kind": "tei", "url": f"http://{address}", "key": "secret"}
    server = RerankServer(RerankerSettings.model_validate(given))
    return lambda: server.scores("q", ["bb", "dddd", "c"]), server.aclose


def of_elastic(kind: str, reason: str = "for a reason") -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason}}


def vector(embedding: Any) -> dict[str, Any]:
    return {"data": [{"index": 0, "embedding": embedding}]}


def scored(*scores: Any) -> list[dict[str, Any]]:
    return [{"index": index, "score": score} for index, score in enumerate(scores)]


OF_QDRANT = {"status": {"error": "for a reason"}, "time": 0.0}
REASON = b"for a reason"
NO_SCORES = r"did not return 3 scores.*kind"
CASES: list[tuple[Callable[[str], Client], int, Any, type[RevelatorError], str]] = [
    (elasticsearch, 401, of_elastic("security_exception"), ConfigurationError, "elasticsearch_key"),
    (elasticsearch, 403, of_elastic("security_exception"), ConfigurationError, "rejected the cred"),
    (elasticsearch, 403, of_elastic("cluster_block_exception"), StoreError, "remove the block"),
    (elasticsearch, 429, of_elastic("cluster_block_exception"), StoreError, "free disk space"),
    (elasticsearch, 429, of_elastic("circuit_breaking_exception"), BackendUnavailable,
     "overloaded"),
    (elasticsearch, 404, of_elastic("index_not_found_exception"), StoreLost,
     "--repair rebuilds it"),
    (elasticsearch, 400, of_elastic("mapper_parsing_exception"), StoreError, "another mapping"),
    (elasticsearch, 503, of_elastic("cluster_block_exception", "no master"), BackendUnavailable,
     "no master"),
    (elasticsearch, 500, {"error": "strange"}, RetrievalFailure, "answered 500 : strange"),
    (elasticsearch, 502, "<html>", BackendUnavailable, "answered 502"),
    (qdrant, 400, OF_QDRANT, StoreError, "rejected the request: .*for a reason"),
    (qdrant, 401, OF_QDRANT, ConfigurationError, "API key"),
    (qdrant, 403, OF_QDRANT, ConfigurationError, "API key"),
    (qdrant, 404, OF_QDRANT, StoreLost, "lost a collection: .*--repair rebuilds it"),
    (qdrant, 408, OF_QDRANT, BackendUnavailable, r"time limit \(408\): .*for a reason"),
    (qdrant, 429, OF_QDRANT, BackendUnavailable, r"overloaded \(429\): for a reason"),
    (qdrant, 500, OF_QDRANT, RetrievalFailure, "failed: .*for a reason"),
    (qdrant, 503, OF_QDRANT, BackendUnavailable, r"not available \(503\): .*for a reason"),
    (qdrant, 507, OF_QDRANT, StoreError, "no space left for writing: .*for a reason"),
    (embeddings, 200, vector([1.0, 2.0, 3.0]), ConfigurationError, "of size 3, but m has size 2"),
    (embeddings, 200, vector([0.0, 0.0]), RetrievalFailure, "returned a zero vector"),
    (embeddings, 200, vector("!"), RetrievalFailure, "did not return 1 vectors"),
    (embeddings, 200, {"data": []}, RetrievalFailure, "did not return 1 vectors"),
    (embeddings, 200, b"<html>", RetrievalFailure, "did not return 1 vectors: '<html>'"),
    (embeddings, 200, b"x" * 1_100_000, RetrievalFailure, "sent a response of more than"),
    (embeddings, 401, REASON, ConfigurationError, r"401: for a reason; check .*embedding\.key"),
    (embeddings, 404, REASON, RetrievalFailure, r"404.*check retrieval\.embedding\.url"),
    (embeddings, 429, REASON, BackendUnavailable, "429"),
    (embeddings, 503, REASON, BackendUnavailable, "503"),
    (reranker, 401, REASON, ConfigurationError, "reranker.key"),
    (reranker, 404, REASON, RetrievalFailure, "kind, url and model"),
    (reranker, 422, REASON, RetrievalFailure, "for a reason"),
    (reranker, 503, REASON, BackendUnavailable, "for a reason"),
    *((reranker, 200, wrong, RetrievalFailure, NO_SCORES) for wrong in (
        b"not json", {}, [], [1, 2, 3], scored(1), scored("x", 1, 1), scored(None, 1, 1))),
    (reranker, 200, scored("nan", "nan", "nan"), RetrievalFailure, "not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("client", "status", "body", "expected", "told"), CASES)
async def test_each_answer_is_an_error_of_ours(
    client: Callable[[str], Client], status: int, body: Any, expected: type[RevelatorError],
    told: str,
) -> None:  # fmt: skip
    requests = 0

    async def answer(request: web.BaseRequest) -> web.Response:
        nonlocal requests
        requests += 1
        await request.read()
        headers = {"x-elastic-product": "Elasticsearch", "content-type": "application/json"}
        headers |= {"retry-after": "1"} if status == 429 else {}
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return web.Response(body=content, status=status, headers=headers)

    async with stub_server(answer) as address:
        call, close = client(address)
        with pytest.raises(expected, match=told) as caught:
            await call()
        await close()
    assert type(caught.value) is expected
    assert address in caught.value.detail
    assert "secret" not in caught.value.detail
    assert requests == 1


@pytest.mark.parametrize(
    ("client", "told"),
    [(partial(elasticsearch, seconds=0.5), "respond in time"),
     (partial(qdrant, seconds=0.5), "within 1 s"), (embeddings, r"within 0\.3 s"),
     (reranker, r"within 0\.3 s")],
)  # fmt: skip
async def test_silence_ends_at_the_timeout(
    client: Callable[[str], Client], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.3)

    async def silent(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with stub_server(silent) as address:
        call, close = client(address)
        with pytest.raises(BackendUnavailable, match=f"did not.* {told}"):
            await call()
        await close()


@pytest.mark.parametrize(
    "client",
    [elasticsearch, elasticsearch_without_login, qdrant, qdrant_by_grpc, embeddings, reranker],
)
async def test_nobody_there(client: Callable[[str], Client]) -> None:
    call, close = client("127.0.0.1:9")
    with pytest.raises(BackendUnavailable, match=r"cannot be reached: .*; check .*url"):
        await call()
    await close()
