"""Answer questions on a Ray cluster (extra `ray`), with a worker and a runtime on each machine.

All machines need the same version of Revelator, and the data directory and models under the same
paths. A data directory can be open in only one process, so each worker searches a copy of it. This
process prepares the questions and keeps the rows, which are the same as without Ray. If a worker
dies, Ray restarts it and repeats its questions. A question that a worker could not work on fails as
one whose engine is unavailable, so it is asked again when the evaluation is continued.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio.to_thread
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.answer.events import BaseEvent
from service.answer.request import PreparedRequest
from service.core.concurrency import closing
from service.core.errors import EngineFailure
from service.core.locks import FILE
from service.core.settings import Settings
from service.evaluation.entries import InProcessEntry
from service.retrieval.base import Alter
from service.retrieval.embedding.on_ray import connected
from service.runtime import Runtime, open_runtime

AT_ONCE: Final = 1_000  # concurrent calls of a worker; this process limits the questions
RESTARTS: Final = 3  # restarts of a worker
CLOSING_S: Final = 10.0
_MOST_SHOWN: Final = 500  # most characters of an error of a worker


class Answering:
    """A remote worker with a runtime over a copy of the data directory, opened at the first
    question."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._runtime: Runtime | None = None

    async def answer(self, request: PreparedRequest, alter: Alter | None) -> list[BaseEvent]:
        """Return the events of a question. Raises EngineFailure if the runtime cannot be opened."""
        runtime = await self._opened()
        async with closing(runtime.ask(request, alter)) as events:
            return [event async for event in events]

    async def _opened(self) -> Runtime:
        async with self._opening:
            if self._runtime is None:
                try:
                    self._runtime = await self._open()
                except Exception as error:
                    await self._stack.aclose()
                    raise EngineFailure(
                        f"a worker of Ray could not open its runtime: {_shown(error)}"
                    ) from error
            return self._runtime

    async def _open(self) -> Runtime:
        folder = Path(self._stack.enter_context(TemporaryDirectory("-revelator"))) / "data"
        await anyio.to_thread.run_sync(copy_data, self._settings.data_dir, folder)
        settings = self._settings.model_copy(update={"data_dir": folder})
        return await self._stack.enter_async_context(open_runtime(settings))

    async def close(self) -> None:
        """Close the runtime and delete the copy."""
        await self._stack.aclose()


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_SHOWN]


def copy_data(data_dir: Path, folder: Path) -> None:
    """Copy a data directory without its lock. Blocking."""
    shutil.copytree(data_dir, folder, ignore=lambda at, names: {FILE} & {*names})


class OnRay(InProcessEntry):
    """Answers questions on the workers of a cluster.

    Each question is sent to the worker with the fewest open ones. A worker that failed is not
    chosen while another one works, because it would fail at once and thus always be the least busy.
    """

    def __init__(self, runtime: Runtime, workers: list[Any]) -> None:
        super().__init__(runtime)
        self._workers = workers
        self._busy = [0] * len(workers)
        self._failed: set[int] = set()

    async def ask(
        self, request: PreparedRequest, alter: Alter | None = None
    ) -> AsyncIterator[BaseEvent]:
        index = self._chosen()
        self._busy[index] += 1
        try:
            events = await self._workers[index].answer.remote(request, alter)
        except EngineFailure:
            self._failed.add(index)
            raise
        except ray.exceptions.RayTaskError:
            raise  # an error of the question, which would recur
        except ray.exceptions.RayError as error:
            self._failed.add(index)
            raise EngineFailure(f"a worker of Ray failed: {_shown(error)}") from error
        finally:
            self._busy[index] -= 1
        for event in events:
            yield event

    def _chosen(self) -> int:
        """Return the index of the least busy worker that has not failed. If all have, each is
        tried again."""
        if len(self._failed) == len(self._workers):
            self._failed.clear()
        working = [index for index in range(len(self._workers)) if index not in self._failed]
        return min(working, key=self._busy.__getitem__)


@contextmanager
def on_ray(address: str, runtime: Runtime) -> Iterator[OnRay]:
    """Start a worker on each machine of the cluster at `address`; `local` starts a cluster on this
    machine.

    Raises ConfigurationError if the cluster does not respond.
    """
    settings = runtime.settings
    settings = settings.model_copy(update={"data_dir": settings.data_dir.resolve()})
    with connected(address):
        workers = [_worker(node, settings) for node in ray.nodes() if node["Alive"]]
        try:
            yield OnRay(runtime, workers)
        finally:
            ray.wait([worker.close.remote() for worker in workers], timeout=CLOSING_S)


def _worker(node: dict[str, Any], settings: Settings) -> Any:
    """Start a worker that reserves all GPUs of its machine."""
    actor = ray.remote(Answering).options(
        max_concurrency=AT_ONCE,
        max_restarts=RESTARTS,
        max_task_retries=1,
        num_gpus=node["Resources"].get("GPU", 0),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
    )
    return actor.remote(settings)
