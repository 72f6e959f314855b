"""A real Elasticsearch and all that can happen to it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread

from service.retrieval.stores.elastic_server import ElasticServer
from tests.elasticsearch_node import Node, running_elasticsearch
from tests.faults.names import Names
from tests.faults.outage import NAME, Act, Service, served
from tests.faults.proxy import Proxy, proxied
from tests.support.signals import suspend

NAMES = (
    "frozen", "killed", "another on its port", "wrong key", "full disk", "index lost", "slow",
    "read-only", "DNS gone",
)  # fmt: skip
HARMLESS = ("full disk", "read-only")  # questions lack nothing
SIDE = "bm25"


class ElasticFaults:
    """The server behind a proxy, which may answer in its place; `kill` and `start` keep its
    data."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self._stack = ExitStack()
        self._port = 0
        self.node = self._run()
        self._port = int(self.node.url.rpartition(":")[2])
        self.proxy: Proxy
        self.names = Names()

    def _run(self) -> Node:
        return self._stack.enter_context(
            running_elasticsearch(self._script, self._port, self._folder)
        )

    def close(self) -> None:
        if self.node.process.poll() is None:
            self.node.process.send_signal(signal.SIGCONT)
        self._stack.close()

    async def freeze(self) -> None:
        suspend(self.node.process.pid)

    async def thaw(self) -> None:
        self.node.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        self.node.process.kill()
        await anyio.to_thread.run_sync(self.node.process.wait, 30)

    async def start(self) -> None:
        self.node = await anyio.to_thread.run_sync(self._run)
        # It answers before its shards do.
        await self._ask(
            lambda client: client.cluster.health(wait_for_status="yellow", timeout="30s")
        )

    async def refuse_the_key(self) -> None:
        self.proxy.status = 401

    async def be_another(self) -> None:
        self.proxy.product, self.proxy.status = "Other", 200

    async def be_itself(self) -> None:
        self.proxy.product, self.proxy.status = "Elasticsearch", None

    async def be_slow(self) -> None:
        self.proxy.delay_s = 30.0

    async def be_quick(self) -> None:
        self.proxy.delay_s = 0.0

    async def be_full(self) -> None:
        """What Elasticsearch does by itself once its disk is nearly full."""
        await self._block("read_only_allow_delete", True)

    async def be_emptied(self) -> None:
        await self._block("read_only_allow_delete", None)

    async def be_read_only(self) -> None:
        await self._block("read_only", True)

    async def be_writable(self) -> None:
        await self._block("read_only", None)

    async def lose_the_index(self) -> None:
        found = await self._ask(lambda client: client.indices.get(index=self._index))
        for name in found:
            await self._ask(lambda client, name=name: client.indices.delete(index=name))

    @property
    def _index(self) -> str:
        return f"revelator-{NAME}.1"

    async def _block(self, which: str, blocked: bool | None) -> None:
        settings = {f"index.blocks.{which}": blocked}
        await self._ask(
            lambda client: client.indices.put_settings(index=self._index, settings=settings)
        )

    async def _ask(self, request: Any) -> Any:
        server = ElasticServer(self.node.url, 30.0)
        try:
            return await server.call(request)
        finally:
            await server.aclose()

    def faults(self, service: Service) -> Mapping[str, tuple[Act, Act]]:
        """What begins and what ends each of `NAMES`."""
        return {
            "frozen": (self.freeze, self.thaw),
            "killed": (self.kill, self.start),
            "another on its port": (self.be_another, self.be_itself),
            "wrong key": (self.refuse_the_key, self.be_itself),
            "full disk": (self.be_full, self.be_emptied),
            "index lost": (self.lose_the_index, service.repair),
            "slow": (self.be_slow, self.be_quick),
            "read-only": (self.be_read_only, self.be_writable),
            "DNS gone": self.names.lost(self.proxy),
        }


@asynccontextmanager
async def elastic_world(script: Path, folder: Path) -> AsyncIterator[tuple[ElasticFaults, Service]]:
    faults = await anyio.to_thread.run_sync(ElasticFaults, script, folder / "elasticsearch")
    try:
        async with proxied(faults.node.url) as faults.proxy:
            retrieval = {"elasticsearch_url": faults.names.url(faults.proxy.url)}
            with faults.names.used():
                async with served(folder / "data", SIDE, retrieval) as service:
                    yield faults, service
    finally:
        await anyio.to_thread.run_sync(faults.close)
