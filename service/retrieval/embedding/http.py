"""Servers of models, and embeddings from any server with `/v1/embeddings`: vLLM,
text-embeddings-inference, OpenAI."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import aiohttp
import orjson
from pydantic import SecretStr

from service.core.connections import CONNECT_S, Connections, reason_of
from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
)
from service.core.settings import EmbeddingSettings
from service.core.settings.urls import address_of, authorization, secrets_of, shown, without
from service.retrieval.embedding.contract import (
    BATCH,
    Embedder,
    EmbeddingContract,
    Vector,
    in_parts,
)
from service.text.wordpiece import count_pieces

TIMEOUT_S: Final = 30.0  # of a request
AT_ONCE = 4  # requests of one call
CHARACTERS = 40  # generous limit of what a server writes for a number
PASSING: Final = {429, 502, 503, 504}  # statuses after which a retry may succeed

Result = TypeVar("Result")


class ModelServer:
    """A server of models, called `what` in errors, whose settings begin with `setting`. Uses one
    connection pool, created in the event loop of the first call. `hint` names what to check if it
    refuses a request. A temporary failure is a BackendUnavailable: the caller may retry."""

    def __init__(
        self,
        what: str,
        setting: str,
        url: str,
        path: str,
        key: SecretStr | None,
        *,
        hint: str,
        on_resent: Callable[[], None] | None = None,
    ) -> None:
        self._url = address_of(url).url.rstrip("/") + path
        self._what = f"{what} at {shown(self._url)}"
        self._setting, self._hint = setting, hint
        self._secrets = secrets_of(url, key)
        self._connections = Connections(
            headers={"Content-Type": "application/json", **authorization(url, key)},
            connect_s=CONNECT_S,
            on_resent=on_resent,
        )

    async def ask(self, body: Any, read: Callable[[bytes], Result], most: int) -> Result:
        """Send JSON and return what `read` makes of the response, which has at most `most` bytes.
        Errors of `read` are raised with the server's name."""
        try:
            status, content = await self._post(orjson.dumps(body), most)
            if status != 200:
                raise self._refusal(status, content)
            return read(content)
        except RevelatorError as error:
            message = without(error.detail, self._secrets)
            raise type(error)(f"{self._what} {message}") from None

    async def aclose(self) -> None:
        await self._connections.aclose()

    async def _post(self, body: bytes, most: int) -> tuple[int, bytes]:
        content, limit = bytearray(), TIMEOUT_S
        try:
            async with (
                asyncio.timeout(limit),
                await self._connections.request("POST", self._url, data=body) as response,
            ):
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > most:
                        raise RetrievalFailure(f"sent a response of more than {most:,} bytes")
                return response.status, bytes(content)
        except TimeoutError:
            raise BackendUnavailable(f"did not respond within {limit:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendUnavailable(
                f"cannot be reached: {reason_of(error)}; check that it is running and that "
                f"{self._setting}.url is correct"
            ) from None

    def _refusal(self, status: int, content: bytes) -> RevelatorError:
        summary = f"answered {status}: {content[:300].decode(errors='replace')}"
        if status in {401, 403}:
            return ConfigurationError(f"{summary}; check {self._setting}.key")
        if status in PASSING:
            return BackendUnavailable(summary)
        return RetrievalFailure(f"{summary}; check {self._hint}")


class HttpEmbedder(Embedder):
    batch = AT_ONCE * BATCH

    def __init__(
        self,
        contract: EmbeddingContract,
        settings: EmbeddingSettings,
        on_resent: Callable[[], None] | None = None,
        location: str = "",
    ) -> None:
        """`location` is the name of the model at the server, if it has another one."""
        self.contract = contract
        self._model = location or contract.model
        self._places = asyncio.Semaphore(AT_ONCE)
        self._server = ModelServer(
            "the embedding server", "retrieval.embedding", settings.url or "", "/embeddings",
            settings.key, on_resent=on_resent,
            hint="retrieval.embedding.url (with /v1) and the model's name "
            "(retrieval.embedding_model)",
        )  # fmt: skip

    async def aclose(self) -> None:
        await self._server.aclose()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        inputs = [shortened(text, self.contract.max_length) for text in texts]
        return await in_parts(inputs, BATCH, self._request)

    async def _request(self, texts: Sequence[str]) -> list[Vector]:
        body = {"model": self._model, "input": texts, "encoding_format": "float"}
        most = len(texts) * self.contract.dimension * CHARACTERS + 1_000_000
        async with self._places:
            return await self._server.ask(
                body, lambda content: read_vectors(content, len(texts), self.contract), most
            )


MARKS = 2  # tokens that BERT adds around a text
_WORD = re.compile(r"\S+")


def shortened(text: str, max_length: int | None) -> str:
    """Return as many words of `text` as the model reads, because servers refuse longer texts. A
    very long one, as in a script without spaces, is cut itself.

    They are counted in BERT's word pieces, which is close enough for other vocabularies.
    """
    if max_length is None or len(text) + MARKS <= max_length:
        return text
    room = max_length - MARKS
    for word in _WORD.finditer(text):
        pieces = count_pieces(word.group())
        if pieces > room:
            characters = room if pieces > max_length // 2 else 0
            return text[: word.start() + characters].rstrip()
        room -= pieces
    return text


def read_vectors(content: bytes, count: int, contract: EmbeddingContract) -> list[Vector]:
    """Return the vectors in the order of the texts sent, whatever the order of the response.

    Raises RetrievalFailure for any other response, and ConfigurationError for vectors of another
    size, or for normalised vectors if the contract does not normalise.
    """
    try:
        rows = orjson.loads(content)["data"]
        found = {int(row["index"]): [float(number) for number in row["embedding"]] for row in rows}
        vectors = [found[index] for index in range(count)]
    except (ValueError, TypeError, KeyError):
        raise RetrievalFailure(
            f"did not return {count} vectors: {content[:200].decode(errors='replace')!r}; check "
            "retrieval.embedding.url"
        ) from None
    return [_checked(vector, contract) for vector in vectors]


def _checked(vector: Vector, contract: EmbeddingContract) -> Vector:
    if len(vector) != contract.dimension:
        raise ConfigurationError(
            f"returns vectors of size {len(vector)}, but {contract.model} has size "
            f"{contract.dimension}; check which model it serves, or set "
            "retrieval.embedding.dimension"
        )
    length = math.sqrt(sum(number * number for number in vector))
    if length == 0:
        raise RetrievalFailure("returned a zero vector; check the server's log")
    if contract.normalise:
        return [number / length for number in vector]
    if abs(length - 1) < 1e-3:
        raise ConfigurationError(
            f"normalises vectors, but {contract.model} uses {contract.distance} distance on "
            "vectors that are not normalised; disable normalisation at the server, or set "
            'retrieval.embedding.distance = "cosine" and ingest again'
        )
    return vector
