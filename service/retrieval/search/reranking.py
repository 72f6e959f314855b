"""Rerankers: a cross-encoder reads query and passage together, on a server or in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from service.core.domain import ScoredPassage
from service.core.errors import ConfigurationError, RetrievalFailure, RevelatorError
from service.core.extras import importing
from service.core.metrics import Metrics
from service.core.settings import RerankerSettings, RetrievalSettings
from service.encoders.in_process import InProcess, in_batches, open_pretrained
from service.retrieval.base import ranked
from service.retrieval.embedding.contract import passage_input
from service.retrieval.embedding.http import ModelServer
from service.retrieval.search.guard import Guard

BACKEND = "reranker"  # its name in the metrics

Passages = tuple[ScoredPassage, ...]


class Reranking:
    """Orders `top_n` passages by the scores of `reranker`, called through a `Guard` like every
    backend."""

    def __init__(
        self, reranker: Reranker, top_n: int, settings: RetrievalSettings, metrics: Metrics
    ) -> None:
        self.top_n = top_n
        self._reranker = reranker
        self._guard = Guard(BACKEND, settings, metrics)

    async def order(self, query: str, fused: Passages, top_k: int, until: float) -> Passages:
        """Return the best `top_k`, in the fused order while the reranker is unavailable."""
        if not fused:
            return fused
        texts = [passage_input(hit.passage) for hit in fused]
        try:
            scores = await self._guard.call(partial(self._reranker.scores, query, texts), until)
        except RevelatorError:
            return fused[:top_k]
        passages = [hit.passage for hit in fused]
        return tuple(ranked(zip(scores, passages, strict=True))[:top_k])

    async def aclose(self) -> None:
        await self._guard.aclose()
        await self._reranker.aclose()


# Rerankers on a server: vLLM's `/v1/rerank`, text-embeddings-inference's `/rerank`.
#
# The server truncates texts that are too long for the model.

MOST_BYTES: Final = 10_000_000  # of a response


class RerankServer:
    """The caller limits the time."""

    def __init__(
        self, settings: RerankerSettings, on_resent: Callable[[], None] | None = None
    ) -> None:
        self._tei, self._model = settings.kind == "tei", settings.model
        path = "/rerank" if self._tei else "/v1/rerank"
        self._server = ModelServer(
            "the reranker", "retrieval.reranker", settings.url or "", path, settings.key,
            hint="retrieval.reranker.kind, url and model", on_resent=on_resent,
        )  # fmt: skip

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return how well each passage answers the query, in their order; higher is better. Raises
        RetrievalFailure, or BackendUnavailable if a retry may succeed."""
        return await self._server.ask(
            self._body(query, list(passages)),
            lambda content: self._read(content, len(passages)),
            MOST_BYTES,
        )

    async def aclose(self) -> None:
        await self._server.aclose()

    def _body(self, query: str, texts: list[str]) -> dict[str, Any]:
        if self._tei:
            return {"query": query, "texts": texts, "truncate": True}
        model = {} if self._model is None else {"model": self._model}
        most = {"truncate_prompt_tokens": -1}  # the model's maximum
        return {**model, "query": query, "documents": texts, **most}

    def _read(self, content: bytes, count: int) -> list[float]:
        """Return the scores. Raises RetrievalFailure unless there is one finite score for every
        passage.
        """
        try:
            answer = orjson.loads(content)
            items, score = (
                (answer, "score") if self._tei else (answer["results"], "relevance_score")
            )
            found = {int(item["index"]): float(item[score]) for item in items}
            scores = [found[index] for index in range(count)]
        except (ValueError, TypeError, KeyError):
            raise RetrievalFailure(
                f"did not return {count} scores: {content[:200]!r}; check retrieval.reranker.kind"
            ) from None
        if not all(map(math.isfinite, scores)):
            raise RetrievalFailure("returned scores that are not finite")
        return scores


# A cross-encoder in this process: a transformers model that gives one score to a pair of texts.
#
# torch and transformers are imported at the first use, in a worker thread.

BATCH: Final = 16  # pairs of one forward pass, similar in length
LONGEST: Final = 512  # tokens of a pair; longer passages are truncated at their end

Score = Callable[[str, Sequence[str]], list[float]]


class CrossEncoder:
    """`folder` holds a sequence classification model with one output, and its tokenizer.

    One forward pass at a time; a caller that leaves waits for at most that one.
    """

    def __init__(self, folder: Path) -> None:
        self._model = InProcess(
            f"the reranker in {folder}", lambda: _load(folder), RetrievalFailure
        )

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return scores in the order of `passages`. Raises ConfigurationError if the model cannot
        be loaded."""

        async def batch(texts: list[str]) -> list[float]:
            return await self._model.run(lambda score, _: score(query, texts))

        return await in_batches(passages, BATCH, batch)

    async def aclose(self) -> None:
        """Do nothing: the model is freed with the reranker."""


def _load(folder: Path) -> Score:
    with importing("retrieval.reranker.kind = local", "transformers"):
        torch, tokenizer, model = open_pretrained(
            "AutoModelForSequenceClassification", folder, f"the reranker in {folder}",
            "set retrieval.reranker.model to its folder", local_files_only=True,
        )  # fmt: skip
    if model.config.num_labels != 1:
        raise ConfigurationError(
            f"the model in {folder} has {model.config.num_labels} outputs; a reranker must have one"
        )
    longest = min(LONGEST, model.config.max_position_embeddings)

    def score(query: str, texts: Sequence[str]) -> list[float]:
        inputs = tokenizer(
            [query] * len(texts),
            list(texts),
            padding=True,
            truncation="longest_first",
            max_length=longest,
            return_tensors="pt",
        ).to(model.device)
        with torch.inference_mode():
            logits = model(**inputs).logits  # (pairs, 1)
        found: list[float] = logits[:, 0].tolist()
        return found

    return score


Reranker = RerankServer | CrossEncoder


def open_reranker(
    settings: RerankerSettings, on_resent: Callable[[], None] | None = None
) -> Reranker:
    """Create the reranker without loading or connecting. `on_resent` is called for repeated
    calls.
    """
    if settings.kind == "local":
        return CrossEncoder(Path(settings.model or ""))
    return RerankServer(settings, on_resent)
