"""A TCP proxy before a real server: it lets through, delays, or answers in the server's place."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream

Act = Callable[[], Awaitable[None]]


class Proxy:
    """`delay_s` and `status` may change while it runs; `refusals` bounds how often `status` is
    answered, `only` to which requests: those that hold it. `requests` counts what came in. `cuts`:
    bytes of responses after which the next connections break."""

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self.url = ""
        self.delay_s = 0.0
        self.status: int | None = None
        self.refusals = 1_000_000
        self.only = b""
        self.product = "Elasticsearch"
        self.requests = 0
        self.cuts: list[int] = []
        self._open: set[anyio.CancelScope] = set()

    def cut(self) -> None:
        """Drop all connections. New ones are let through."""
        for connection in list(self._open):
            connection.cancel()

    def lead_to(self, target: str) -> None:
        """Connect to this server from now on."""
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)

    async def serve(self, client: SocketStream) -> None:
        """One connection; a request fits into what is read at once."""
        with contextlib.suppress(OSError):
            async with (
                client,
                await anyio.connect_tcp(*self._target) as server,
                anyio.create_task_group() as group,
            ):
                self._open.add(group.cancel_scope)
                group.start_soon(self._answers, server, client, group.cancel_scope)
                with contextlib.suppress(anyio.BrokenResourceError, OSError):
                    await self._requests(client, server)
                self._open.discard(group.cancel_scope)
                group.cancel_scope.cancel()

    async def _requests(self, client: SocketStream, server: SocketStream) -> None:
        async for data in client:
            self.requests += data.count(b" HTTP/1.1\r\n")
            await anyio.sleep(self.delay_s)
            if self.status is not None and self.refusals > 0 and self.only in data:
                self.refusals -= 1
                await client.send(_answer(self.status, self.product))
                return
            await server.send(data)

    async def _answers(
        self, server: SocketStream, client: SocketStream, connection: anyio.CancelScope
    ) -> None:
        left = self.cuts.pop(0) if self.cuts else None
        with contextlib.suppress(anyio.BrokenResourceError, OSError):
            async for data in server:
                await client.send(data[:left])
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        break
        connection.cancel()  # a server that is gone leaves no client waiting


def _answer(status: int, product: str) -> bytes:
    body = b'{"error":{"type":"of_the_proxy","reason":"said the proxy"}}'
    return (
        b"HTTP/1.1 %d Said\r\nx-elastic-product: %s\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    ) % (status, product.encode(), len(body), body)


def changed(thing: object, **values: object) -> tuple[Act, Act]:
    """What gives these attributes of a thing other values, and what gives their own back."""
    before = {name: getattr(thing, name) for name in values}

    async def breaks() -> None:
        vars(thing).update(values)

    async def heals() -> None:
        vars(thing).update(before)

    return breaks, heals


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    """A proxy before the server at the URL `target`."""
    proxy = Proxy(target)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        proxy.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, proxy.serve)
            yield proxy
            group.cancel_scope.cancel()
