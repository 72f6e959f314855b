"""`revelator serve --workers 2`: both answer at one address, one that dies is replaced, and all end
in order. No store runs, which questions on the route `direct` do not need."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio.to_thread
import pytest

from service.cli.processes import run_workers
from service.core.errors import ConfigurationError
from service.core.settings import Settings
from tests.faults.proxy import free_port
from tests.support.live import Raw, eventually
from tests.support.workers import StubWorker, stub_worker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
START_S = 90.0
SETTINGS = """
data_dir = "{data}"
[server]
port = 0
workers = 2
drain_s = 30
[retrieval]
embedding_model = "hashing"
elasticsearch_url = "http://127.0.0.1:{dead}"
qdrant_url = "http://127.0.0.1:{dead}"
[engines.default]
kind = "openai"
urls = ["{engine}"]
"""


@dataclass
class Served:
    process: asyncio.subprocess.Process
    url: str
    engine: StubWorker

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def workers(self) -> set[int]:
        """The processes that serve: those which multiprocessing has spawned for that."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {pid for pid in map(int, children.split()) if b"spawn_main" in commands(pid)}

    async def ask(self) -> str:
        """One question by a connection of its own; the id of its answer."""
        body = {"question": "Who?", "route": "direct"}
        async with aiohttp.request("POST", f"{self.url}/answer", json=body) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["id"])

    async def sample(self, name: str) -> float:
        """The sum of all samples of a metric, as whichever process tells it."""
        async with aiohttp.request("GET", f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def commands(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    with stub_worker("--token-delay", "0.02") as engine:
        config = folder / "revelator.toml"
        config.write_text(
            SETTINGS.format(data=folder / "data", dead=free_port(), engine=engine.url)
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "service", "serve", "--config", str(config),
            stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
            assert " is running at http://127.0.0.1:" in line, line
            yield Served(process, line.split()[4], engine)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def instances(service: Served, many: int) -> set[str]:
    """Which processes have answered, once so many of them have."""
    found: set[str] = set()
    async with asyncio.timeout(60):
        while len(found) < many:
            found |= {each.partition("-")[0] for each in await asyncio.gather(*_asks(service))}
    return found


def _asks(service: Served) -> list[asyncio.Future[str]]:
    return [asyncio.ensure_future(service.ask()) for _ in range(8)]


async def test_both_answer_the_dead_is_replaced_and_all_drain(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        before = await instances(service, 2)
        asked = await service.sample("revelator_questions_total")
        assert asked >= 8
        assert asked == await service.sample("revelator_llm_calls_per_question_count")

        old = service.workers
        assert len(old) == 2
        os.kill(min(old), signal.SIGKILL)
        await eventually(lambda: len(service.workers) == 2 and service.workers != old, 30)
        assert len(before | await instances(service, 2)) == 3
        assert await service.sample("revelator_questions_total") >= asked + 8
        assert await service.sample("revelator_questions_in_flight") == 0

        await anyio.to_thread.run_sync(lambda: service.engine.tell(token_delay=0.2))
        streams = [await Raw.ask(service.port, route="direct") for _ in range(8)]
        heads = [await stream.until("event: token", 20) for stream in streams]
        assert await service.sample("revelator_questions_in_flight") == 8
        service.process.send_signal(signal.SIGTERM)
        for head, stream in zip(heads, streams, strict=True):
            assert "event: answer\n" in head + await stream.rest(30)
            await stream.close()
        assert await asyncio.wait_for(service.process.wait(), 30) == 0
    assert not [name for name in os.listdir(tmp_path) if name.startswith("revelator-metrics-")]


async def test_workers_end_when_the_first_process_is_killed(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        workers = service.workers
        service.process.kill()
        await eventually(lambda: not any(b"spawn_main" in commands(pid) for pid in workers), 30)


@pytest.mark.parametrize("given", [{}, {"elasticsearch_url": "http://127.0.0.1:9200"}])
def test_an_embedded_store_is_refused(tmp_path: Path, given: dict[str, str]) -> None:
    settings = Settings.model_validate(
        {"data_dir": tmp_path, "server": {"workers": 2}, "retrieval": given}
    )
    with pytest.raises(ConfigurationError, match=r"set .*retrieval\.qdrant_url, or serve with one"):
        run_workers(settings, print)


def test_what_keeps_a_worker_from_serving_is_told_once(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    retrieval = {"elasticsearch_url": dead, "qdrant_url": dead, "embedding_model": "nowhere"}
    settings = Settings.model_validate(
        {"data_dir": tmp_path, "server": {"workers": 2, "port": 0}, "retrieval": retrieval}
    )
    with pytest.raises(ConfigurationError, match="nowhere"):
        run_workers(settings, print)
