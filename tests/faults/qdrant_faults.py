"""A real Qdrant and all that can happen to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread

from service.retrieval.stores.qdrant_server import QdrantServer
from tests.faults.names import Names
from tests.faults.outage import NAME, Act, Service, served
from tests.faults.proxy import Proxy, free_port, proxied
from tests.qdrant_node import QdrantNode, running_qdrant

NAMES = (
    "frozen", "killed", "another on its ports", "wrong key", "collection lost", "strict mode",
)  # fmt: skip
HARMLESS = ("strict mode",)  # questions lack nothing
SIDE = "dense"
KEY = "k3y-that-nobody-prints"


class QdrantFaults:
    """The server on its two ports; `kill` and `start` keep its data."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self._stack = ExitStack()
        port = free_port(pair=True)
        self._ports = (port, port + 1)
        self.node = self._run("data")

    def _run(self, data: str, **settings: str) -> QdrantNode:
        return self._stack.enter_context(
            running_qdrant(self._script, self._folder / data, self._ports, settings)
        )

    @property
    def retrieval(self) -> Mapping[str, Any]:
        """Settings of the service."""
        return {"qdrant_url": self.node.url, "qdrant_grpc_port": self.node.grpc_port}

    def close(self) -> None:
        self._stack.close()

    async def freeze(self) -> None:
        self.node.freeze()

    async def thaw(self) -> None:
        self.node.thaw()

    async def kill(self) -> None:
        await anyio.to_thread.run_sync(self.node.kill)

    async def start(self) -> None:
        self.node = await anyio.to_thread.run_sync(self._run, "data")

    async def restart(self) -> None:
        """As it should be, after it ran as something else."""
        await self.kill()
        await self.start()

    async def run_another(self) -> None:
        await self.kill()
        self.node = await anyio.to_thread.run_sync(self._run, "other")

    async def want_a_key(self) -> None:
        await self.kill()

        def run() -> QdrantNode:
            return self._run("data", QDRANT__SERVICE__API_KEY=KEY)

        self.node = await anyio.to_thread.run_sync(run)

    async def lose_the_collection(self) -> None:
        await self._ask(lambda client: client.delete_collection(f"revelator-{NAME}.1"))

    async def be_strict(self) -> None:
        from qdrant_client.models import StrictModeConfig

        strict = StrictModeConfig(
            enabled=True, max_query_limit=100, unindexed_filtering_retrieve=False
        )
        await self._ask(
            lambda client: client.update_collection(
                f"revelator-{NAME}.1", strict_mode_config=strict
            )
        )

    async def nothing(self) -> None:
        """It heals by itself, or is no fault."""

    async def _ask(self, request: Any) -> None:
        server = QdrantServer(self.node.url, 10.0, 0)
        try:
            await server.call(request)
        finally:
            await server.aclose()

    def faults(self, service: Service) -> Mapping[str, tuple[Act, Act]]:
        """What begins and what ends each of `NAMES`."""
        return {
            "frozen": (self.freeze, self.thaw),
            "killed": (self.kill, self.start),
            "another on its ports": (self.run_another, self.restart),
            "wrong key": (self.want_a_key, self.restart),
            "collection lost": (self.lose_the_collection, service.repair),
            "strict mode": (self.be_strict, self.nothing),
        }


@asynccontextmanager
async def qdrant_world(script: Path, folder: Path) -> AsyncIterator[tuple[QdrantFaults, Service]]:
    faults = await anyio.to_thread.run_sync(QdrantFaults, script, folder / "qdrant")
    try:
        async with served(folder / "data", SIDE, faults.retrieval) as service:
            yield faults, service
    finally:
        await anyio.to_thread.run_sync(faults.close)


def full_disk(proxy: Proxy) -> tuple[Act, Act]:
    """Writes are refused as by a server without space; what begins it and what ends it."""

    async def breaks() -> None:
        proxy.status, proxy.only = 507, b"PUT /collections"

    async def heals() -> None:
        proxy.status = None

    return breaks, heals


def read_only(proxy: Proxy) -> tuple[Act, Act]:
    """Writes are refused as with Qdrant's read-only key."""
    _, heals = full_disk(proxy)

    async def breaks() -> None:
        proxy.status, proxy.only = 403, b"PUT /collections"

    return breaks, heals


def slow(proxy: Proxy) -> tuple[Act, Act]:
    """Nothing is answered in the time that a search has."""

    async def breaks() -> None:
        proxy.delay_s = 30.0

    async def heals() -> None:
        proxy.delay_s = 0.0

    return breaks, heals


@asynccontextmanager
async def proxied_world(
    script: Path, folder: Path, names: Names | None = None
) -> AsyncIterator[tuple[Proxy, Service]]:
    """By REST through a proxy, which may answer in the server's place, and by name if `names` are
    used."""
    faults = await anyio.to_thread.run_sync(QdrantFaults, script, folder / "qdrant")
    try:
        async with proxied(faults.node.url) as proxy:
            url = names.url(proxy.url) if names else proxy.url
            retrieval = {"qdrant_url": url, "qdrant_grpc_port": 0}
            async with served(folder / "data", SIDE, retrieval) as service:
                yield proxy, service
    finally:
        await anyio.to_thread.run_sync(faults.close)
