"""Embedding on the workers of a Ray cluster (extra `ray`).

Only the texts and their vectors travel: the command reads the files and writes the stores, so that
an ingest is the same with and without Ray. Workers must have the same Revelator installed. Ray
replaces a worker that dies, and repeats its work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray

from service.core.connections import trust, trusted_files
from service.core.errors import ConfigurationError, RevelatorError
from service.core.settings import RetrievalSettings
from service.retrieval.embedding.contract import BATCH, Embedder, Vector, in_parts
from service.retrieval.embedding.embedders import open_embedder

LOCAL = "local"  # in place of an address: a Ray on this machine, for this run only


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the Ray cluster at `address`, or one started here for `local`. Raises ConfigurationError
    if no cluster responds."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"no Ray cluster responds at {address!r}: {error}; start one there, or use --ray local"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _open(ca_files: Sequence[Path], settings: RetrievalSettings, threads: int | None) -> Embedder:
    """On a worker: open the embedder, which trusts the same authorities as here."""
    trust(ca_files)
    return open_embedder(settings, threads=threads)


class RayEmbedder(Embedder):
    """A worker for each GPU of the cluster, or for each CPU if there are no GPUs, embeds passages;
    queries are embedded here. `opening` opens the embedder of a worker."""

    def __init__(
        self,
        settings: RetrievalSettings,
        opening: Callable[[RetrievalSettings], Embedder] | None = None,
    ) -> None:
        found = ray.cluster_resources()
        gpus, cpus = int(found.get("GPU", 0)), int(found.get("CPU", 1))
        opening = opening or partial(_open, trusted_files(), threads=None if gpus else 1)
        self._here = opening(settings)
        self.contract = self._here.contract
        worker: Any = ray.remote(max_restarts=-1, max_task_retries=-1)(_Worker).options(
            **{"num_gpus": 1} if gpus else {"num_cpus": 1}
        )
        workers = [worker.remote(settings, opening) for _ in range(gpus or max(1, cpus))]
        self.batch = 2 * BATCH * len(workers)
        self._idle = asyncio.Queue[Any]()
        for worker in workers:
            self._idle.put_nowait(worker)

    def problem(self) -> str | None:
        return self._here.problem()

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self._here.embed_queries(texts)

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return await in_parts(texts, BATCH, self._on_worker)

    async def _on_worker(self, texts: Sequence[str]) -> list[Vector]:
        worker = await self._idle.get()
        try:
            vectors: list[Vector] = await worker.embed.remote(list(texts))
        except ray.exceptions.RayError as error:
            raise RevelatorError(f"the ingest on Ray failed: {_cause(error)}") from error
        finally:
            self._idle.put_nowait(worker)
        return vectors


class _Worker:
    def __init__(
        self, settings: RetrievalSettings, opening: Callable[[RetrievalSettings], Embedder]
    ) -> None:
        self._embedder = opening(settings)

    async def embed(self, texts: list[str]) -> list[Vector]:
        return await self._embedder.embed_passages(texts)


def _cause(error: BaseException) -> str:
    """Return the error of a worker's own code, without the layers that Ray adds."""
    while inner := getattr(error, "cause", None) or error.__cause__:
        error = inner
    reason = str(error).strip() or "no reason given"
    return f"{type(error).__name__}: {reason.splitlines()[0]}"
