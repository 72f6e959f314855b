"""No panic of native code outlives its request, and a task that cannot go on fails the probe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service import checks
from service.api import health
from service.core.supervision import MOST_RESTARTS
from tests.support.documents import ingest_documents
from tests.support.live import Live, config, live
from tests.unit.retrieval.worlds import CORPUS


class Panic(BaseException):
    """As pyo3 makes it: no Exception, of a module that no file has."""


Panic.__module__ = "pyo3_runtime"


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[Live]:
    async with live(settings=config(data), own_stores=True) as service:
        collections = service.app.state.runtime.retrieval.collections
        await collections.create("default")
        await ingest_documents(CORPUS, "default", collections)
        yield service


async def test_a_panic_anywhere_in_a_recorded_question_ends_that_question_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def panic(*_: Any, **__: Any) -> None:
        raise Panic("index out of bounds")

    async with served(tmp_path) as service:

        async def ask(key: str) -> int:
            body, headers = {"question": "Which volcano?", "route": "single"}, {}
            if key:
                headers["Idempotency-Key"] = key
            async with service.http.post("/answer", json=body, headers=headers) as response:
                return int(response.status)

        with monkeypatch.context() as patched:
            patched.setattr(type(service.app.state.runtime), "answer", panic)
            assert await ask("panic") == 500
        assert [await ask(key) for key in ("", "after")] == [200, 200]
        monkeypatch.setattr(checks, "OPEN_S", 60.0)
        monkeypatch.setattr(health, "CHECK_TIMEOUT_S", 60.0)
        for probe in ("/healthz", "/readyz"):
            async with service.http.get(probe) as response:
                assert response.status == 200, await response.text()


async def test_a_task_that_fails_whenever_it_is_restarted_fails_the_probe_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as service:
        monkeypatch.setattr("service.core.supervision.PAUSE_S", 0.001)
        tries, given_up = 0, asyncio.Event()

        async def panic() -> None:
            nonlocal tries
            tries += 1
            if tries > MOST_RESTARTS + 1:
                given_up.set()
            raise Panic("poisoned lock")

        service.app.state.tasks.keep("doomed", panic)
        async with asyncio.timeout(30):
            await given_up.wait()
        async with service.http.get("/healthz") as response:
            assert response.status == 503
            assert "'doomed' fails whenever" in await response.text()
