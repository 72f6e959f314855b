"""Rerankers on a server: vLLM's `/v1/rerank` and `/score`, text-embeddings-inference's `/rerank`.

What is longer than the model reads is cut by the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from service.errors import BackendUnavailable, ConfigurationError, RetrievalFailure

CONNECT_S: Final = 5.0
PASSING: Final = {429, 502, 503, 504}  # statuses that another try may not meet


@dataclass(frozen=True, slots=True)
class Wire:
    """A path, its request, and where its answer has (index, score) of each passage."""

    path: str
    body: Callable[[str | None, str, Sequence[str]], dict[str, Any]]
    items: Callable[[Any], Any]
    score: str


# truncate_prompt_tokens -1: what the model can read
WIRES: Final = {
    "vllm": Wire(
        "/v1/rerank",
        lambda model, query, texts: {
            "model": model, "query": query, "documents": texts, "truncate_prompt_tokens": -1,
        },
        lambda answer: answer["results"],
        "relevance_score",
    ),
    "vllm-score": Wire(
        "/score",
        lambda model, query, texts: {
            "model": model, "text_1": query, "text_2": texts, "truncate_prompt_tokens": -1,
        },
        lambda answer: answer["data"],
        "score",
    ),
    "tei": Wire(
        "/rerank",
        lambda model, query, texts: {"query": query, "texts": texts, "truncate": True},
        lambda answer: answer,
        "score",
    ),
}  # fmt: skip


class RerankServer:
    """One connection pool, made in the loop of the first call; the caller bounds the time."""

    def __init__(self, wire: Wire, url: str, model: str | None, key: str | None = None) -> None:
        self._wire = wire
        self._url = url.rstrip("/") + wire.path
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """In the order of `passages`. Raises ConfigurationError for a refused key."""
        body = self._wire.body(self._model, query, list(passages))
        body = {name: value for name, value in body.items() if value is not None}
        try:
            async with self._opened().post(
                self._url, data=orjson.dumps(body), headers=self._headers
            ) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BackendUnavailable(
                f"the reranker at {self._url} cannot be reached: {error}; is it running, and is "
                "retrieval.reranker.url right?"
            ) from error
        if response.status != 200:
            raise self._refusal(response.status, text)
        return self._read(text, len(passages))

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
                headers={"Content-Type": "application/json"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _refusal(self, status: int, text: bytes) -> RetrievalFailure | ConfigurationError:
        told = (
            f"the reranker at {self._url} answered {status}: {text[:300].decode(errors='replace')}"
        )
        if status in {401, 403}:
            return ConfigurationError(f"{told}; check retrieval.reranker.key")
        if status in PASSING:
            return BackendUnavailable(told)
        return RetrievalFailure(f"{told}; check retrieval.reranker.kind, url and model")

    def _read(self, text: bytes, count: int) -> list[float]:
        """Raises RetrievalFailure unless there is one finite score for every passage."""
        try:
            items = self._wire.items(orjson.loads(text))
            found = {int(item["index"]): float(item[self._wire.score]) for item in items}
            scores = [found[index] for index in range(count)]
        except (ValueError, TypeError, KeyError) as error:
            raise RetrievalFailure(
                f"the reranker at {self._url} answered no {count} scores: {text[:200]!r}; check "
                "retrieval.reranker.kind"
            ) from error
        if not all(map(math.isfinite, scores)):
            raise RetrievalFailure(
                f"the reranker at {self._url} answered scores that are not finite"
            )
        return scores
