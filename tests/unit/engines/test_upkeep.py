from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from yarl import URL

from service.core.errors import EngineFailure, EngineUnreached
from service.core.metrics import Metrics, Phase
from service.core.settings import EngineSettings
from service.engines import workers
from service.engines.base import Profile
from service.engines.pool import PoolGenerator
from service.engines.workers import PoolLimits, Worker, addresses


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    async def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_every_address_of_a_name_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, ["10.0.0.2", "10.0.0.1", "fd00::1"])
    found = await addresses([URL("http://workers:8000/v1")], True)
    assert set(map(str, found)) == {
        "http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1", "http://[fd00::1]:8000/v1",
    }  # fmt: skip
    answering(monkeypatch, socket.gaierror(-2, "Name or service not known"))
    with pytest.raises(EngineFailure, match=r"no address for workers.*not known.*urls"):
        await addresses([URL("http://workers:8000/v1")], True)


@pytest.mark.parametrize("host", ["a" * 64, f"{'b' * 64}.svc", "a..b"])
async def test_a_name_that_cannot_be_looked_up_is_told(host: str) -> None:
    with pytest.raises(EngineFailure, match=rf"{host} is not a valid host name.*urls"):
        await addresses([URL(f"http://{host}:8000/v1")], True)


class FakeClient:
    """A worker that is healthy. `before` is called with its URL at each probe."""

    def __init__(self, url: str, before: Callable[[URL], None] = lambda url: None) -> None:
        self._url, self._before = URL(url), before

    async def health(self) -> None:
        self._before(self._url)

    async def profile(self) -> Profile:
        return Profile(("base",))

    async def aclose(self) -> None:
        pass


class World(Metrics):
    """A pool of two workers. `broken` are names of workers of which no change is accepted."""

    def __init__(self, *, resolve: bool = False, **limits: float) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.before: Callable[[URL], None] = lambda url: None
        settings = EngineSettings.model_validate(
            {"kind": "vllm", "urls": ["http://a:80/v1", "http://b:80/v1"], "resolve": resolve}
        )
        quick: Any = {"probe_s": 0.01, "resolve_s": 0.0, **limits}
        with mock.patch.object(workers, "LIMITS", PoolLimits(**quick)):
            self.pool = PoolGenerator("e", settings, self.connect, self)  # type: ignore[arg-type]

    def connect(self, url: str) -> FakeClient:
        return FakeClient(url, lambda own: self.before(own))  # noqa: PLW0108 (it changes)

    def worker_phase(self, worker: str, phase: Phase) -> None:
        if worker in self.broken:
            raise RuntimeError("the metrics are broken")
        super().worker_phase(worker, phase)

    @property
    def workers(self) -> dict[str, Worker]:
        return {worker.name: worker for worker in self.pool.workers()}

    def phases(self) -> list[str]:
        return [worker.phase for worker in self.pool.workers()]


async def test_a_round_that_fails_unexpectedly_is_told_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, RuntimeError("no such luck"))
    world = World(resolve=True)
    async with asyncio.timeout(10):
        with pytest.raises(EngineFailure, match="no such luck"):
            await world.pool.check()

        answering(monkeypatch, ["10.0.0.1"])
        while "up" not in world.phases():  # noqa: ASYNC110 (the rounds have no event)
            await asyncio.sleep(0.01)
        await world.pool.check()
    await world.pool.aclose()


async def test_an_unexpected_failure_at_one_worker_spares_the_others() -> None:
    world = World()
    world.broken.add("a:80")

    await world.pool.round()

    assert world.workers["b:80"].phase == "up"
    assert "the metrics are broken" in world.workers["a:80"].problem


async def test_a_worker_that_left_the_name_is_gone_after_its_last_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, ["10.0.0.1", "10.0.0.2"])
    world = World(resolve=True)
    await world.pool.round()
    world.workers["10.0.0.2:80"].calls = 1

    answering(monkeypatch, ["10.0.0.1"])
    await world.pool.round()
    assert world.phases() == ["up", "draining"]
    assert b'revelator_worker_up{worker="10.0.0.2:80"} 0.0' in world.render()

    world.workers["10.0.0.2:80"].calls = 0
    await world.pool.round()
    assert world.phases() == ["up"]
    assert b'revelator_worker_up{worker="10.0.0.1:80"} 1.0' in world.render()
    assert b"10.0.0.2" not in world.render()


async def test_closing_ends_the_wait_for_the_first_round() -> None:
    world = World()
    waiting = asyncio.create_task(world.pool.check())
    await asyncio.sleep(0)  # the round has not begun

    await world.pool.aclose()

    async with asyncio.timeout(10):
        with pytest.raises(EngineFailure, match="shutting down"):
            await waiting


async def test_a_probe_does_not_readmit_a_worker_that_calls_ejected_meanwhile() -> None:
    world = World()
    await world.pool.round()
    worker = world.workers["a:80"]

    def lose_a_call(base: URL) -> None:
        if base.host == worker.url.host:
            world.pool.call_failed(worker, EngineUnreached("nobody listens"))

    world.before = lose_a_call
    await world.pool.round()

    assert world.phases() == ["ejected", "up"]


async def test_a_readmitted_worker_is_on_probation_until_something_succeeds() -> None:
    world = World()
    await world.pool.round()
    worker = world.workers["a:80"]
    for _ in range(3):
        world.pool.call_failed(worker, EngineFailure("wrong"))
    assert world.phases() == ["ejected", "up"]
    await world.pool.round()
    assert world.phases() == ["up", "up"]
    world.pool.call_failed(worker, EngineFailure("wrong"))
    assert world.phases() == ["ejected", "up"]
    for _ in range(2):
        await world.pool.round()
    world.pool.call_failed(worker, EngineFailure("wrong"))
    assert world.phases() == ["up", "up"]
