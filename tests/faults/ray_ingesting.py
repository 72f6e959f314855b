"""An ingest on a Ray of its own, one of whose workers dies; run as
`python -m tests.faults.ray_ingesting DATA LOG FILES...`.

Every embedding worker notes its process id in LOG. The first to come to its second batch kills
itself with -9 and leaves its id in LOG.killed. LOG.report tells the counts and the failures.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from service.core.settings import RetrievalSettings
from service.retrieval.embedding.contract import Vector
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.embedding.on_ray import LOCAL, RayEmbedder, connected
from service.retrieval.ingest.pipeline import ingest
from tests.faults.killing import NAME
from tests.unit.retrieval.worlds import opened

SETTINGS = RetrievalSettings(embedding_model="hashing")


class DyingEmbedder(HashingEmbedder):
    def __init__(self, log: Path) -> None:
        self._log = log
        self._calls = 0

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self._calls += 1
        if self._calls == 2:
            self._die_once()
        _note(self._log, os.O_APPEND)
        return await super().embed_passages(texts)

    def _die_once(self) -> None:
        try:
            _note(self._log.with_suffix(".killed"), os.O_EXCL)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def opening(log: Path, settings: RetrievalSettings) -> DyingEmbedder:
    return DyingEmbedder(log)


def _note(path: Path, how: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | how)
    os.write(handle, f"{os.getpid()}\n".encode())
    os.close(handle)


async def main(data: Path, log: Path, files: Sequence[Path]) -> None:
    with connected(LOCAL):
        embedder = RayEmbedder(SETTINGS, partial(opening, log))
        async with opened(data, embedder) as collections:
            await collections.create(NAME)
            report = await ingest(files, NAME, collections)
    counts = f"{report.indexed} {report.unchanged} {report.failed} {report.embedded}"
    log.with_suffix(".report").write_text("\n".join([counts, *map(str, report.failures)]))


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    anyio.run(main, given[0], given[1], given[2:])
