"""Serve stubs of other servers for the duration of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def stub_server(served: web.Application | Handler, port: int = 0) -> AsyncIterator[str]:
    """Serve an application, or one function for all requests, and yield the address as host and
    port."""
    runner: web.BaseRunner
    if isinstance(served, web.Application):
        runner = web.AppRunner(served, shutdown_timeout=0.1)
    else:
        runner = web.ServerRunner(web.Server(served), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def stubbed(kind: Callable[[], Any], url: str = "http://{}") -> Any:
    """A fixture: a stub of this kind, whose `handle` answers at its `url`."""

    @pytest.fixture
    async def stub() -> AsyncIterator[Any]:
        made = kind()
        async with stub_server(made.handle) as address:
            made.url = url.format(address)
            yield made

    return stub
