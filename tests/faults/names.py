"""Hosts whose names cannot be resolved any more, or not yet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web

from service.checks import warm
from service.retrieval.embedding.embedders import HashingEmbedder
from tests.faults.outage import Counts, Service, served
from tests.faults.proxy import Act, Proxy, proxied
from tests.faults.workers import OPTIONS, Row, ask, pool_of
from tests.server_nodes import free_port
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
    """Questions go on over the workers that were found before the name service went; `for_s` is
    more than one round of probes."""
    row, names, port = Row(), Names(), free_port()
    with stub_worker("--port", str(port), *OPTIONS), names.used():
        async with pool_of([f"http://{NAME}:{port}/v1"], resolve=True) as runtime:
            await warm(runtime)
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


async def admitted(service: Live, token: str, questions: int = 1) -> Counts:
    """Questions with a token: `refused` ones were told that the issuer is not available."""
    service.http.headers["Authorization"] = f"Bearer {token}"
    asked = [await service.ask(route="direct") for _ in range(questions)]
    answered = sum(status == 200 for status, _ in asked)
    told = [body.get("type", "") for status, body in asked if status == 503]
    refused = sum(each.endswith(":issuer-unavailable") for each in told)
    return Counts(answered, refused=refused, lost=questions - answered - refused)


async def lose_issuer(questions: int, *, known: bool) -> tuple[Counts, bool]:
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
                    await admitted(service, token())
                names.gone = True
                met = await admitted(service, token(), questions)
                names.gone = False
                for _ in range(50):
                    if (await admitted(service, token())).answered:
                        return met, True
                    await asyncio.sleep(0.1)
    return met, False
