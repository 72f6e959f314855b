"""A model in this process: one forward pass at a time, in a worker thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread

from service.core.errors import ConfigurationError, RevelatorError
from service.retrieval.embedding.base import BATCH, Vector
from service.retrieval.embedding.contract import EmbeddingContract

Encode = Callable[[Sequence[str]], list[Vector]]


class InProcessEmbedder:
    """Turns are taken by batch, so that a query waits for at most one batch of passages.

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
        self._running = threading.Lock()
        self._encode: Encode | None = None

    def problem(self) -> str | None:
        return self._problem()

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed([self.contract.query_prefix + text for text in texts])

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed([self.contract.passage_prefix + text for text in texts])

    async def aclose(self) -> None:
        """Nothing to do: the model goes with the embedder."""

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        """In batches of 32 by length; the result is in the order of `texts`."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors: list[Vector] = [[]] * len(texts)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            made = await self._batch([texts[index] for index in part])
            for index, vector in zip(part, made, strict=True):
                vectors[index] = vector
        return vectors

    async def _batch(self, texts: list[str]) -> list[Vector]:
        gone = threading.Event()
        async with self._turn:
            try:
                return await anyio.to_thread.run_sync(
                    self._run, texts, gone, abandon_on_cancel=True
                )
            finally:
                gone.set()

    def _run(self, texts: list[str], gone: threading.Event) -> list[Vector]:
        """Where the caller before left, its pass is waited for; where this one did, there is
        none."""
        with self._running:
            if gone.is_set():
                return []
            try:
                return self._loaded()(texts)
            except RevelatorError:
                raise
            except Exception as error:
                raise RevelatorError(f"{self.contract.model} failed: {error}") from error

    def _loaded(self) -> Encode:
        if self._encode is None:
            problem = self._problem()
            if problem:
                raise ConfigurationError(problem)
            self._encode = self._load()
        return self._encode
