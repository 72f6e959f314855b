"""The properties that a collection's vectors and a query's vector must share to be comparable, and
presets of published models, according to their model cards.

MiniLM was trained on texts of up to 256 word pieces. E5 needs the prefixes `query: ` and `passage:
` and was trained with cosine. Contriever is compared by the dot product of means that are not
normalised. BGE uses the first token's vector, and an instruction before queries only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from pydantic import Field

from service.core.concurrency import gather
from service.core.domain import Model, Passage
from service.core.errors import RetrievalFailure
from service.core.settings.retrieval import Distance, Pooling

Vector = list[float]

BATCH = 32  # texts embedded at once, similar in length; servers of TEI accept no more


async def in_parts(
    texts: Sequence[str],
    size: int,
    embed: Callable[[Sequence[str]], Coroutine[Any, Any, list[Vector]]],
) -> list[Vector]:
    """Embed parts of `size` texts, all of them concurrently, and return the vectors in order."""
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    vectors = await gather([partial(embed, part) for part in parts])
    return [vector for part in vectors for vector in part]


def finite(vectors: list[Vector]) -> list[Vector]:
    """Return the vectors. Raises RetrievalFailure if one is not finite: some stores would keep it,
    and find its passage always or never."""
    if all(math.isfinite(sum(vector)) for vector in vectors):
        return vectors
    raise RetrievalFailure(
        "the embedding model returned a vector that is not finite; check the files of the model, "
        "and whether its weights fit their precision"
    )


class Embedder:
    """Computes vectors according to `contract`, which a collection stores when it is built. Raises
    ConfigurationError if the model cannot be used at all, another RevelatorError if it failed this
    time.

    `batch` is the number of passages that are best embedded at once: more are in memory together,
    and are lost together when the process is killed.
    """

    contract: EmbeddingContract
    batch = BATCH

    def problem(self) -> str | None:
        """Return why it cannot run, or None. Loads nothing."""
        return None

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self.embed([self.contract.query_prefix + text for text in texts])

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return await self.embed([self.contract.passage_prefix + text for text in texts])

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors of texts with their prefixes."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""


def passage_input(passage: Passage) -> str:
    """Return the text of a passage that is embedded: its title, then its text."""
    return f"{passage.title}. {passage.text}" if passage.title else passage.text


class EmbeddingContract(Model):
    """How text becomes a vector. A collection keeps it in its manifest, and queries must follow it.

    `max_length` counts tokens, including the prefix and special tokens; longer texts are truncated
    at the end; None means no limit. If a server embeds, it also does the pooling. `revision`
    increases when the vectors that Revelator produces under these names change.
    """

    model: str
    dimension: int = Field(ge=1)
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    normalise: bool = True
    distance: Distance = "cosine"
    max_length: int | None = Field(512, ge=8)
    revision: int = Field(1, ge=1)


def differences(built: EmbeddingContract, settings: EmbeddingContract) -> str:
    """Return the differing fields with both values, for an error message. Empty if there are
    none."""
    return "; ".join(
        f"{field} is {mine!r}, but the settings say {theirs!r}"
        for field in EmbeddingContract.model_fields
        if (mine := getattr(built, field)) != (theirs := getattr(settings, field))
    )


MINILM = EmbeddingContract(model="all-MiniLM-L6-v2", dimension=384, max_length=256, revision=2)
HASHING = EmbeddingContract(model="hashing-384", dimension=384, max_length=None)


# Of each publisher: what all its models need, and the size of each one's vectors.
_PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "intfloat": (
        {"query_prefix": "query: ", "passage_prefix": "passage: "},
        {
            "e5-base-v2": 768, "e5-large-v2": 1024, "multilingual-e5-small": 384,
            "multilingual-e5-base": 768, "multilingual-e5-large": 1024,
        },
    ),
    "facebook": (
        {"normalise": False, "distance": "dot"},
        {"contriever": 768, "contriever-msmarco": 768},
    ),
    "BAAI": (
        {
            "query_prefix": "Represent this sentence for searching relevant passages: ",
            "pooling": "cls",
        },
        {"bge-small-en-v1.5": 384, "bge-base-en-v1.5": 768, "bge-large-en-v1.5": 1024},
    ),
}  # fmt: skip
PRESETS = {"minilm": MINILM} | {
    name: EmbeddingContract(model=f"{owner}/{name}", dimension=dimension, **fields)
    for owner, (fields, models) in _PUBLISHED.items()
    for name, dimension in models.items()
}


def preset_of(name: str) -> EmbeddingContract | None:
    """Return a preset by its short name, or by the model's name on the hub."""
    by_model = {contract.model: contract for contract in PRESETS.values()}
    return PRESETS.get(name) or by_model.get(name.removeprefix("sentence-transformers/"))
