"""A model in this process: one forward pass at a time, in a worker thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread

from service.errors import ConfigurationError, RevelatorError
from service.retrieval.embedding.base import BATCH, Vector
from service.retrieval.embedding.contract import EmbeddingContract

Encode = Callable[[Sequence[str]], list[Vector]]


class _Waiting:
    """Texts of one caller until the worker thread has filled `vectors` or `error`."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.vectors: list[Vector] | None = None
        self.error: Exception | None = None
        self.gone = False

    @property
    def settled(self) -> bool:
        return self.vectors is not None or self.error is not None

    def result(self) -> list[Vector]:
        if self.vectors is None:
            raise self.error or RuntimeError("the embedding thread settled nothing: a bug")
        return self.vectors


class InProcessEmbedder:
    """Queries that wait are embedded together, and a query waits for at most one batch of passages.

    `load` makes the model's forward pass at the first use, in a worker thread; `problem` says why
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
        self._turn = anyio.Lock()
        self._model_lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._encode: Encode | None = None

    def problem(self) -> str | None:
        return self._problem()

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed([self.contract.query_prefix + text for text in texts])

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """In batches of 32 by length; the result is in the order of `texts`."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors: list[Vector] = [[]] * len(texts)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            inputs = [self.contract.passage_prefix + texts[index] for index in part]
            for index, vector in zip(part, await self._embed(inputs), strict=True):
                vectors[index] = vector
        return vectors

    async def aclose(self) -> None:
        """Nothing to do: the model goes with the embedder."""

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        entry = _Waiting(texts)
        self._waiting.append(entry)
        try:
            async with self._turn:
                while not entry.settled:
                    await anyio.to_thread.run_sync(self._work, abandon_on_cancel=True)
        finally:
            entry.gone = True
        return entry.result()

    def _work(self) -> None:
        """Embed what waits, up to a batch. The lock covers threads whose caller has gone."""
        with self._model_lock:
            batch = self._take()
            try:
                vectors = self._loaded()([text for entry in batch for text in entry.texts])
            except RevelatorError as error:
                _settle(batch, error)
            except Exception as error:
                failure = RevelatorError(f"{self.contract.model} failed: {error}")
                failure.__cause__ = error
                _settle(batch, failure)
            else:
                for entry in batch:
                    entry.vectors, vectors = (
                        vectors[: len(entry.texts)],
                        vectors[len(entry.texts) :],
                    )

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        room = BATCH
        while self._waiting and (not batch or len(self._waiting[0].texts) <= room):
            entry = self._waiting.popleft()
            if not entry.gone:
                batch.append(entry)
                room -= len(entry.texts)
        return batch

    def _loaded(self) -> Encode:
        if self._encode is None:
            problem = self._problem()
            if problem:
                raise ConfigurationError(problem)
            self._encode = self._load()
        return self._encode


def _settle(batch: list[_Waiting], error: Exception) -> None:
    for entry in batch:
        entry.error = error
