"""What goes to and comes from `/v1/embeddings`, as OpenAI, vLLM and text-embeddings-inference
speak it. No I/O."""

from __future__ import annotations

import base64
import math
import re
import struct
from typing import Any

import orjson

from service.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    RetrievalFailure,
    RevelatorError,
)
from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import EmbeddingContract
from service.text.wordpiece import count_pieces

MARKS = 2  # tokens that frame a text
PASSING = {429, 502, 503, 504}  # statuses that another try may not meet

_WORD = re.compile(r"\S+")


def shortened(text: str, prefix: str, max_length: int | None) -> str:
    """`prefix` and as many words of `text` as the model reads: servers refuse what is longer.

    Counted in BERT's word pieces, which is near enough for other vocabularies.
    """
    if max_length is None or len(prefix) + len(text) + MARKS <= max_length:
        return prefix + text
    room = max_length - MARKS - count_pieces(prefix)
    for word in _WORD.finditer(text):
        room -= count_pieces(word.group())
        if room < 0:
            return prefix + (text[: word.start()].rstrip() or text[:max_length])
    return prefix + text


def read_vectors(content: bytes, count: int, contract: EmbeddingContract) -> list[Vector]:
    """In the order of the texts sent, whatever the order of the answer.

    Raises RetrievalFailure for what is no such answer, ConfigurationError for vectors of another
    size, or normalised ones where the contract has them as they are.
    """
    try:
        rows = orjson.loads(content)["data"]
        found = {int(row["index"]): _decoded(row["embedding"]) for row in rows}
        vectors = [found[index] for index in range(count)]
    except (ValueError, TypeError, KeyError, struct.error):
        raise RetrievalFailure(
            f"did not return {count} vectors: {content[:200].decode(errors='replace')!r}; check "
            "retrieval.embedding.url"
        ) from None
    return [_checked(vector, contract) for vector in vectors]


def _decoded(value: Any) -> Vector:
    if isinstance(value, str):
        raw = base64.b64decode(value, validate=True)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return [float(number) for number in value]


def _checked(vector: Vector, contract: EmbeddingContract) -> Vector:
    if len(vector) != contract.dimension:
        raise ConfigurationError(
            f"returns vectors of size {len(vector)}, but {contract.model} has size "
            f"{contract.dimension}; check which model it serves, or set "
            "retrieval.embedding.dimension"
        )
    length = math.sqrt(sum(number * number for number in vector))
    if not math.isfinite(length) or length == 0:
        raise RetrievalFailure("returned a zero vector; check the server's log")
    if contract.normalise:
        return [number / length for number in vector]
    if abs(length - 1) < 1e-3:
        raise ConfigurationError(
            f"normalises vectors, but {contract.model} uses {contract.distance} distance on "
            "vectors that are not normalised; disable normalisation at the server, or set "
            "retrieval.embedding.normalise = true and ingest again"
        )
    return vector


def refusal(status: int, content: bytes) -> RevelatorError:
    """What an answer that is not 200 means."""
    told = f"answered {status}: {content[:300].decode(errors='replace')}"
    if status in {401, 403}:
        return ConfigurationError(f"{told}; check retrieval.embedding.key")
    if status in PASSING:
        return BackendUnavailable(told)
    return RetrievalFailure(
        f"{told}; check retrieval.embedding.url (with /v1) and the model's name "
        "(retrieval.embedding_model, or retrieval.embedding.location)"
    )
