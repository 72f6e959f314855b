"""Rerankers on a server: vLLM's `/v1/rerank` and `/score`, text-embeddings-inference's `/rerank`.

The server truncates texts that are too long for the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from pydantic import SecretStr

from service.core.connections import Connections, reason_of
from service.core.errors import BackendUnavailable, ConfigurationError, RetrievalFailure
from service.core.settings.urls import address_of, authorization, secrets_of, shown, without

PASSING: Final = {429, 502, 503, 504}  # statuses after which a retry may succeed


@dataclass(frozen=True, slots=True)
class Wire:
    """A path, its request, and the place of each passage's (index, score) in its response."""

    path: str
    body: Callable[[str | None, str, Sequence[str]], dict[str, Any]]
    items: Callable[[Any], Any]
    score: str


# truncate_prompt_tokens -1: the model's maximum
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
    """Uses one connection pool, created in the event loop of the first call. The caller limits the
    time."""

    def __init__(
        self,
        wire: Wire,
        url: str,
        model: str | None,
        key: SecretStr | None = None,
        ca_files: Sequence[Path] = (),
        on_resent: Callable[[], None] | None = None,
    ) -> None:
        address = address_of(url)
        self._wire = wire
        self._url = address.url.rstrip("/") + wire.path
        self._shown = shown(self._url)
        self._model = model
        self._secrets = secrets_of(url, key)
        self._connections = Connections(
            headers={"Content-Type": "application/json", **authorization(url, key)},
            ca_files=ca_files,
            ca_setting="retrieval.ca_files",
            on_resent=on_resent,
        )

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return scores in the order of `passages`. Raises ConfigurationError for a refused key."""
        body = self._wire.body(self._model, query, list(passages))
        body = {name: value for name, value in body.items() if value is not None}
        try:
            async with await self._connections.request(
                "POST", self._url, data=orjson.dumps(body)
            ) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BackendUnavailable(
                f"the reranker at {self._shown} cannot be reached: {reason_of(error)}; check "
                "that it is running and that retrieval.reranker.url is correct"
            ) from error
        if response.status != 200:
            raise self._refusal(response.status, text)
        return self._read(text, len(passages))

    async def aclose(self) -> None:
        await self._connections.aclose()

    def _refusal(self, status: int, text: bytes) -> RetrievalFailure | ConfigurationError:
        message = without(text[:300].decode(errors="replace"), self._secrets)
        summary = f"the reranker at {self._shown} answered {status}: {message}"
        if status in {401, 403}:
            return ConfigurationError(f"{summary}; check retrieval.reranker.key")
        if status in PASSING:
            return BackendUnavailable(summary)
        return RetrievalFailure(f"{summary}; check retrieval.reranker.kind, url and model")

    def _read(self, text: bytes, count: int) -> list[float]:
        """Return the scores. Raises RetrievalFailure unless there is one finite score for every
        passage.
        """
        try:
            items = self._wire.items(orjson.loads(text))
            found = {int(item["index"]): float(item[self._wire.score]) for item in items}
            scores = [found[index] for index in range(count)]
        except (ValueError, TypeError, KeyError) as error:
            raise RetrievalFailure(
                f"the reranker at {self._shown} did not return {count} scores: {text[:200]!r}; "
                "check retrieval.reranker.kind"
            ) from error
        if not all(map(math.isfinite, scores)):
            raise RetrievalFailure(
                f"the reranker at {self._shown} returned scores that are not finite"
            )
        return scores
