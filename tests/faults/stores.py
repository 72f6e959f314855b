"""Real stores on servers, and all that can happen to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.faults.names import Names
from tests.faults.outage import NAME, Act, Service, served
from tests.faults.proxy import Proxy, changed, proxied
from tests.server_nodes import (
    Node,
    Restarted,
    free_port,
    restarted,
    restarted_qdrant,
    running_elasticsearch,
)

OWN: Final = f"revelator-{NAME}.1"  # what the servers call the collection
KEY: Final = "k3y-that-nobody-prints"
HARMLESS: Final = ("full disk", "read-only", "strict mode")  # questions lack nothing
REFUSALS: Final = {"full disk": "no space left", "read-only": "qdrant"}  # of writes
Faults = Mapping[str, tuple[Act, Act]]  # what begins each, and what ends it


ELASTIC: Final = (
    "frozen", "killed", "another on its port", "wrong key", "full disk", "index lost", "slow",
    "read-only", "DNS gone",
)  # fmt: skip


@asynccontextmanager
async def elastic_world(script: Path, folder: Path) -> AsyncIterator[tuple[Faults, Service]]:
    """Behind a proxy, which may answer in its place."""
    port, names = free_port(), Names()

    def run() -> AbstractContextManager[Node]:
        return running_elasticsearch(script, port, folder / "elasticsearch")

    async with restarted(run) as server, proxied(server.node.url) as proxy:
        with names.used():
            url = names.url(proxy.url)
            async with served(folder / "data", "bm25", {"elasticsearch_url": url}) as service:
                yield _of_elastic(server, proxy, names, service), service


def _of_elastic(server: Restarted, proxy: Proxy, names: Names, service: Service) -> Faults:
    async def ask(request: Any) -> Any:
        client = ElasticServer(server.node.url, 30.0)
        try:
            return await client.call(request)
        finally:
            await client.aclose()

    async def start() -> None:
        await server.start()
        # It answers before its shards do.
        await ask(lambda client: client.cluster.health(wait_for_status="yellow", timeout="30s"))

    def blocked(which: str) -> tuple[Act, Act]:
        async def block(value: bool | None) -> None:
            settings = {f"index.blocks.{which}": value}
            await ask(lambda client: client.indices.put_settings(index=OWN, settings=settings))

        return lambda: block(True), lambda: block(None)

    async def lose() -> None:
        for name in await ask(lambda client: client.indices.get(index=OWN)):
            await ask(lambda client, name=name: client.indices.delete(index=name))

    return {
        "frozen": (server.freeze, server.thaw),
        "killed": (server.kill, start),
        "another on its port": changed(proxy, product="Other", status=200),
        "wrong key": changed(proxy, status=401),
        # What Elasticsearch does by itself once its disk is nearly full.
        "full disk": blocked("read_only_allow_delete"),
        "index lost": (lose, service.repair),
        "slow": changed(proxy, delay_s=30.0),
        "read-only": blocked("read_only"),
        "DNS gone": names.lost(proxy),
    }


QDRANT: Final = (
    "frozen", "killed", "another on its ports", "wrong key", "collection lost", "strict mode",
)  # fmt: skip


@asynccontextmanager
async def qdrant_world(
    script: Path, folder: Path
) -> AsyncIterator[tuple[Restarted, Faults, Service]]:
    async with restarted_qdrant(script, folder) as server:
        retrieval = {"qdrant_url": server.node.url, "qdrant_grpc_port": server.node.grpc_port}
        async with served(folder / "data", "dense", retrieval) as service:
            yield server, _of_qdrant(server, service), service


def _of_qdrant(server: Restarted, service: Service) -> Faults:
    def instead(*given: object) -> tuple[Act, Act]:
        """Another server in its place."""

        async def again(*given: object) -> None:
            await server.kill()
            await server.start(*given)

        return lambda: again(*given), again

    async def ask(request: Any) -> None:
        client = QdrantServer(server.node.url, 10.0, 0)
        try:
            await client.call(request)
        finally:
            await client.aclose()

    async def lose() -> None:
        await ask(lambda client: client.delete_collection(OWN))

    async def be_strict() -> None:
        from qdrant_client.models import StrictModeConfig

        strict = StrictModeConfig(
            enabled=True, max_query_limit=100, unindexed_filtering_retrieve=False
        )
        await ask(lambda client: client.update_collection(OWN, strict_mode_config=strict))

    async def nothing() -> None:
        """It is no fault."""

    return {
        "frozen": (server.freeze, server.thaw),
        "killed": (server.kill, server.start),
        "another on its ports": instead("other"),
        "wrong key": instead("data", {"QDRANT__SERVICE__API_KEY": KEY}),
        "collection lost": (lose, service.repair),
        "strict mode": (be_strict, nothing),
    }


PROXIED: Final = (
    "full disk", "read-only", "slow", "DNS gone", "no Qdrant: 200", "no Qdrant: 404",
    "no Qdrant: 500",
)  # fmt: skip


@asynccontextmanager
async def proxied_world(script: Path, folder: Path) -> AsyncIterator[tuple[Faults, Service]]:
    """Qdrant by REST, by name, and through a proxy, which may answer in its place."""
    names = Names()
    async with restarted_qdrant(script, folder) as server, proxied(server.node.url) as proxy:
        with names.used():
            retrieval = {"qdrant_url": names.url(proxy.url), "qdrant_grpc_port": 0}
            async with served(folder / "data", "dense", retrieval) as service:
                writes = b"PUT /collections"
                yield (
                    {
                        "full disk": changed(proxy, status=507, only=writes),
                        "read-only": changed(proxy, status=403, only=writes),
                        "slow": changed(proxy, delay_s=30.0),
                        "DNS gone": names.lost(proxy),
                        **{f"no Qdrant: {n}": changed(proxy, status=n) for n in (200, 404, 500)},
                    },
                    service,
                )
