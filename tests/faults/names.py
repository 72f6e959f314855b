"""Hosts whose names cannot be resolved any more, or not yet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web

from service.retrieval.embedding.embedders import HashingEmbedder
from tests.faults.outage import Act, Service, served
from tests.faults.proxy import Proxy, free_port, proxied
from tests.faults.workers import OPTIONS, Row, ask, pool_of
from tests.support.live import Live, config, live
from tests.support.stub_server import stub_server
from tests.support.workers import stub_worker

NAME: Final = "named.test"
RESOLVERS: Final = asyncio.base_events.BaseEventLoop


async def embeddings(request: web.BaseRequest) -> web.Response:
    texts = orjson.loads(await request.read())["input"]
    vectors = await HashingEmbedder().embed_queries(texts)
    rows = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return web.json_response({"data": rows})


class Names:
    """A name service that knows one name, the address 127.0.0.1, until it is `gone`.

    Clients ask it for every connection, as if what they remember of it had run out.
    """

    def __init__(self, name: str = NAME) -> None:
        self.name = name
        self.gone = False

    def url(self, url: str) -> str:
        """The URL of a server of this machine, by its name."""
        parts = urlsplit(url)
        return parts._replace(netloc=f"{self.name}:{parts.port}").geturl()

    @contextmanager
    def used(self) -> Iterator[None]:
        real, connector = RESOLVERS.getaddrinfo, aiohttp.TCPConnector
        real_at_once = socket.getaddrinfo

        async def find(loop: Any, host: Any, port: Any, **options: Any) -> Any:
            if host not in (self.name, self.name.encode()):
                return await real(loop, host, port, **options)
            if self.gone:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port or 0)))]

        def find_at_once(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
            if host not in (self.name, self.name.encode()):
                return real_at_once(host, port, *arguments, **options)
            if self.gone:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port or 0)))]

        def forgetting(**options: Any) -> aiohttp.TCPConnector:
            return connector(**options | {"use_dns_cache": False})

        with (
            mock.patch.object(RESOLVERS, "getaddrinfo", find),
            mock.patch.object(socket, "getaddrinfo", find_at_once),
            mock.patch.object(aiohttp, "TCPConnector", forgetting),
        ):
            yield

    def lost(self, proxy: Proxy) -> tuple[Act, Act]:
        """Connections end and their name is gone; what begins it and what ends it."""

        async def breaks() -> None:
            self.gone = True
            proxy.cut()

        async def heals() -> None:
            self.gone = False

        return breaks, heals


async def lose_workers(for_s: float) -> Row:
    """Questions go on over the workers that were found before the name service went."""
    row, names, port = Row(), Names(), free_port()
    with stub_worker("--port", str(port), *OPTIONS), names.used():
        async with pool_of([f"http://{NAME}:{port}/v1"], resolve=True) as runtime:
            await runtime.warm()
            names.gone = True
            until = time.monotonic() + for_s
            while time.monotonic() < until:
                asked = [ask(runtime, number, lambda: None) for number in range(4)]
                row.outcomes += await asyncio.gather(*asked)
    return row


@asynccontextmanager
async def embedding_world(folder: Path) -> AsyncIterator[tuple[Names, Proxy, Service]]:
    """The service on embedded stores, with the server of its embeddings by name."""
    names = Names()
    async with stub_server(embeddings) as address, proxied(f"http://{address}") as proxy:
        retrieval: Mapping[str, Any] = {
            "embedding_model": "served",
            "embedding": {
                "url": f"{names.url(proxy.url)}/v1",
                "dimension": HashingEmbedder.contract.dimension,
            },
        }
        with names.used():
            async with served(folder / "data", "dense", retrieval) as service:
                service.varied = True
                yield names, proxy, service


@dataclass
class Admitted:
    """Questions with a token: `refused` ones were told that the issuer is not available."""

    answered: int = 0
    refused: int = 0
    lost: int = 0

    async def ask(self, service: Live, token: str) -> None:
        service.http.headers["Authorization"] = f"Bearer {token}"
        status, body = await service.ask(route="direct")
        unavailable = body.get("type", "").endswith(":issuer-unavailable")
        self.answered += status == 200
        self.refused += status == 503 and unavailable
        self.lost += status != 200 and not unavailable


async def lose_issuer(questions: int, *, known: bool) -> tuple[Admitted, bool]:
    """Questions with tokens while the issuer's name is gone, and whether one is answered once it
    is back. `known`: its keys were read before."""
    from service.api import tenants as tokens
    from tests.api.test_tokens import AUDIENCE, ISSUER, running, token

    names = Names("localhost")  # a URL without TLS may have no other
    async with running() as issuer:
        oidc = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": names.url(issuer.url)}
        with names.used(), mock.patch.object(tokens, "AGAIN_S", 0.2):
            async with live(settings=config(server={"oidc": oidc})) as service:
                if known:
                    await Admitted().ask(service, token())
                names.gone, met, after = True, Admitted(), Admitted()
                for _ in range(questions):
                    await met.ask(service, token())
                names.gone = False
                for _ in range(50):
                    await after.ask(service, token())
                    if after.answered:
                        break
                    await asyncio.sleep(0.1)
    return met, after.answered == 1
