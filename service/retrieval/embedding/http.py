"""Embeddings of any server that has `/v1/embeddings`: vLLM, text-embeddings-inference, OpenAI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import aiohttp
import orjson

from service.concurrency import gather
from service.errors import BackendUnavailable, RetrievalFailure, RevelatorError
from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.http_wire import read_vectors, refusal, shortened
from service.settings import EmbeddingSettings

CONNECT_S = 5.0
AT_ONCE = 4  # requests of one call
CHARACTERS = 40  # most that a server writes for a number, generously


class HttpEmbedder:
    """One connection pool, made in the loop of the first call. A failure that may pass is a
    BackendUnavailable: the caller may try again."""

    def __init__(self, contract: EmbeddingContract, settings: EmbeddingSettings) -> None:
        self.contract = contract
        self._settings = settings
        self._url = f"{settings.url}/embeddings"
        self._places = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    def problem(self) -> str | None:
        return None

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed(texts, self.contract.query_prefix)

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed(texts, self.contract.passage_prefix)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _embed(self, texts: Sequence[str], prefix: str) -> list[Vector]:
        inputs = [shortened(text, prefix, self.contract.max_length) for text in texts]
        size = self._settings.batch
        parts = [inputs[start : start + size] for start in range(0, len(inputs), size)]
        vectors = await gather([partial(self._request, part) for part in parts])
        return [vector for part in vectors for vector in part]

    async def _request(self, texts: Sequence[str]) -> list[Vector]:
        body = orjson.dumps(
            {
                "model": self._settings.location or self.contract.model,
                "input": texts,
                "encoding_format": self._settings.encoding,
            }
        )
        try:
            async with self._places:
                status, content = await self._post(body, len(texts))
            if status != 200:
                raise refusal(status, content)
            return read_vectors(content, len(texts), self.contract)
        except RevelatorError as error:
            raise type(error)(f"the embedding server at {self._url} {error.detail}") from None

    async def _post(self, body: bytes, count: int) -> tuple[int, bytes]:
        most = count * self.contract.dimension * CHARACTERS + 1_000_000
        content = bytearray()
        try:
            async with self._connected().post(self._url, data=body) as response:
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > most:
                        raise RetrievalFailure(f"answers more than {most:,} bytes")
                return response.status, bytes(content)
        except TimeoutError:
            limit = self._settings.timeout_s
            raise BackendUnavailable(f"did not answer within {limit:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendUnavailable(
                f"cannot be reached: {error}; is it running, and is retrieval.embedding.url right?"
            ) from None

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Content-Type": "application/json"}
            if self._settings.key is not None:
                headers["Authorization"] = f"Bearer {self._settings.key.get_secret_value()}"
            limit = self._settings.timeout_s
            self._session = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=limit, connect=min(CONNECT_S, limit)),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session
