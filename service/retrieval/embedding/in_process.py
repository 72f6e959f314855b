"""A model in this process: one forward pass at a time, in a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.core.errors import ConfigurationError, RevelatorError
from service.encoders.in_process import InProcess, in_batches
from service.retrieval.embedding.base import BATCH, Vector
from service.retrieval.embedding.contract import EmbeddingContract

Encode = Callable[[Sequence[str]], list[Vector]]


class InProcessEmbedder:
    """An embedder whose callers take turns by batch, so that a query waits for at most one batch of
    passages.

    `load` creates the model's forward pass at the first use, in a worker thread; `problem` says why
    it cannot, and loads nothing.
    """

    def __init__(
        self,
        contract: EmbeddingContract,
        load: Callable[[], Encode],
        problem: Callable[[], str | None],
    ) -> None:
        self.contract = contract
        self._load = load
        self._problem = problem
        self._model = InProcess(contract.model, self._loaded, RevelatorError)

    def problem(self) -> str | None:
        return self._problem()

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed([self.contract.query_prefix + text for text in texts])

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed([self.contract.passage_prefix + text for text in texts])

    async def aclose(self) -> None:
        """Do nothing: the model is freed with the embedder."""

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        return await in_batches(texts, BATCH, self._batch)

    async def _batch(self, texts: list[str]) -> list[Vector]:
        return await self._model.run(lambda encode, _: encode(texts))

    def _loaded(self) -> Encode:
        if problem := self._problem():
            raise ConfigurationError(problem)
        return self._load()
