"""Several worker processes that serve one address: `revelator serve --workers N`.

The first process binds the address, and starts and monitors the workers; it answers no requests.
The workers accept connections from the same socket, so a waiting connection is accepted by any free
worker, and the end of a worker loses only the connections that it had accepted. A worker that ends
or hangs is replaced. Workers share only the stores: each has its own engines, models, request
slots, rate limits and recordings.

SIGTERM or SIGINT lets all workers drain at the same time (`serve.py`); a second signal ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import structlog
from prometheus_client.multiprocess import mark_process_dead

from service.api.security import check_exposure
from service.cli.serve import FLUSH_S, OnStarted, base_url, bind, loop_factory, serve
from service.core.errors import ConfigurationError, RevelatorError
from service.core.locks import acquire
from service.core.settings import Settings
from service.telemetry.metrics import SHARED

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.2  # interval between checks of the workers
BEAT_S: Final = 1.0
HUNG_S: Final = 60.0  # time without a heartbeat after which a worker counts as hung
AGAIN_S: Final = 1.0  # delay before restarting a worker that failed to start
CLOSE_S: Final = 10.0  # time for closing engines and stores after the last question

Prepare = Callable[[], None]
_spawn: Final = multiprocessing.get_context("spawn")


@dataclass(eq=False)
class Worker:
    """A worker process.

    `status` is the connection on which it reports that it serves, or why it cannot. `beat` is the
    time at which its event loop last ran, in seconds of the monotonic clock, which all processes
    share.
    """

    number: int
    process: multiprocessing.process.BaseProcess
    status: Connection
    beat: Any
    serving: bool = False
    problem: str = ""
    leaving: bool = False

    def listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self.status.poll():
                self.problem = self.status.recv()
                self.serving = not self.problem

    def leave(self, *, now: bool = False) -> None:
        """Start draining the worker.

        The signal is sent only once, since a second one ends the worker immediately; `now` sends it
        again.
        """
        if now or not self.leaving:
            self.leaving = True
            self.process.terminate()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def end(self) -> str:
        """The reason why the worker ended."""
        code = self.process.exitcode
        return self.problem or (
            f"worker {self.number} ended with exit code {code}; see the log on standard error"
        )

    @property
    def hung(self) -> bool:
        return self.serving and time.monotonic() - self.beat.value > HUNG_S


def run_workers(settings: Settings, prepare: Prepare, on_started: OnStarted | None = None) -> None:
    """Serve with `server.workers` processes until a signal.

    `on_started` gets the base URL once all workers serve. Each worker first calls `prepare`, which
    must be a function of a module so that it can be pickled. Raises ConfigurationError if a store
    is embedded or a worker cannot serve.
    """
    check_exposure(settings.server)
    check_stores(settings)
    directory = acquire(settings.data_dir)
    with directory, bind(settings.server) as listener, _metrics_folder() as metrics:
        url = base_url(listener)
        workers = Workers(settings, listener, prepare, metrics)

        def started() -> None:
            directory.set_url(url)
            if on_started is not None:
                on_started(url)

        with workers.signals():
            workers.run(started)


def check_stores(settings: Settings) -> None:
    """Raise ConfigurationError unless both stores are on servers: an embedded store can be open in
    only one process."""
    lacking = [
        f"retrieval.{name}_url"
        for name in ("elasticsearch", "qdrant")
        if getattr(settings.retrieval, f"{name}_url") is None
    ]
    if lacking:
        raise ConfigurationError(
            f"{settings.server.workers} workers cannot share an embedded store; set "
            f"{' and '.join(lacking)}, or serve with one worker (--workers 1)"
        )


@contextmanager
def _metrics_folder() -> Iterator[str]:
    """Create the folder whose name prometheus-client reads from the environment when a worker
    imports it."""
    with tempfile.TemporaryDirectory(prefix="revelator-metrics-") as folder:
        os.environ[SHARED] = folder
        try:
            yield folder
        finally:
            del os.environ[SHARED]


class Workers:
    """Starts, monitors and stops the workers."""

    def __init__(
        self, settings: Settings, listener: socket.socket, prepare: Prepare, metrics: str
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._prepare = prepare
        self._metrics = metrics
        self._workers: list[Worker] = []
        self._stopping = False

    def run(self, on_started: Callable[[], None]) -> None:
        """Serve until a signal. Raises ConfigurationError if a worker cannot start serving."""
        try:
            for number in range(self._settings.server.workers):
                self._workers.append(self._start(number))
            if self._serve_all():
                on_started()
                self._watch()
        finally:
            self._stop()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Forward SIGTERM and SIGINT to the workers, as SIGTERM."""

        def handle(*_: object) -> None:
            again, self._stopping = self._stopping, True
            for worker in self._workers:
                worker.leave(now=again)

        before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _start(self, number: int) -> Worker:
        receiving, sending = _spawn.Pipe(duplex=False)
        beat = _spawn.Value("d", time.monotonic(), lock=False)
        own = self._settings.data_dir / "workers" / str(number)
        settings = self._settings.model_copy(update={"data_dir": own})
        process = _spawn.Process(
            target=_work,
            args=(settings, self._listener, self._prepare, sending, beat),
            name=f"worker {number}",
        )
        process.start()
        sending.close()
        return Worker(number, process, receiving, beat)

    def _serve_all(self) -> bool:
        """Wait until all workers serve. Returns False if a signal arrives first."""
        while not self._stopping:
            self._look()
            for worker in self._workers:
                if worker.problem or not worker.alive:
                    raise ConfigurationError(worker.end)
            if all(worker.serving for worker in self._workers):
                return True
        return False

    def _watch(self) -> None:
        """Replace workers that end or hang, until a signal arrives."""
        while not self._stopping:
            self._look()
            for place, worker in enumerate(self._workers):
                if worker.hung:
                    log.error("worker does not respond and is replaced", pid=worker.process.pid)
                    worker.process.kill()
                    worker.process.join()
                if not worker.alive and not self._stopping:
                    log.error("a worker is replaced", reason=worker.end)
                    self._bury(worker)
                    time.sleep(0 if worker.serving else AGAIN_S)
                    self._workers[place] = self._start(worker.number)

    def _look(self) -> None:
        """Wait for `LOOK_S`, or until a worker reports or ends, and read the reports."""
        alive = [worker for worker in self._workers if worker.alive]
        silent = [worker.status for worker in alive if not (worker.serving or worker.problem)]
        wait([*(worker.process.sentinel for worker in alive), *silent], timeout=LOOK_S)
        for worker in self._workers:
            worker.listen()

    def _stop(self) -> None:
        self._stopping = True
        self._listener.close()
        for worker in self._workers:
            worker.leave()
        deadline = time.monotonic() + self._settings.server.drain_s + FLUSH_S + CLOSE_S
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.alive:
                log.error("a worker did not end in time", pid=worker.process.pid)
                worker.process.kill()
                worker.process.join()
            self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        """Remove the worker's gauges from the metrics. Its counters remain part of the totals."""
        mark_process_dead(worker.process.pid, self._metrics)  # type: ignore[no-untyped-call]
        worker.status.close()


def _work(
    settings: Settings, listener: socket.socket, prepare: Prepare, status: Connection, beat: Any
) -> None:
    """Run one worker in its own process."""
    os.setpgrp()  # Ctrl-C in a terminal must only reach the first process, which forwards it
    prepare()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, listener, status, beat))
    except RevelatorError as error:
        status.send(error.detail)


async def _serve(
    settings: Settings, listener: socket.socket, status: Connection, beat: Any
) -> None:
    first = multiprocessing.parent_process()
    assert first is not None
    loop = asyncio.get_running_loop()

    def orphaned() -> None:
        """Drain if the first process was killed and can no longer request it."""
        loop.remove_reader(first.sentinel)
        signal.raise_signal(signal.SIGTERM)

    loop.add_reader(first.sentinel, orphaned)
    beating = asyncio.create_task(_keep_beating(beat))
    try:
        await serve(settings, listener, lambda _: status.send(""))
    finally:
        beating.cancel()
        loop.remove_reader(first.sentinel)


async def _keep_beating(beat: Any) -> None:
    while True:
        beat.value = time.monotonic()
        await asyncio.sleep(BEAT_S)
