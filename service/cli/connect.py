"""The server that a command uses: a running one, or one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from pydantic import SecretStr

from service.client import Client
from service.core.locks import find_server
from service.core.settings import ServerSettings, Settings


@asynccontextmanager
async def open_server(
    settings: Settings, url: str | None = None
) -> AsyncIterator[tuple[str, SecretStr | None]]:
    """Yield the address of a server and the key for it: of the one at `url`, else of the one that
    holds the data directory, else of one that serves in this process until the block ends.

    The latter is reached by this command alone: it has a key that nobody else knows. Raises
    ConfigurationError or StoreError if something of it cannot be opened.
    """
    if base := find_server(settings.data_dir, url):
        yield base, settings.own_key
        return
    from service.api.app import create_app  # noqa: PLC0415
    from service.api.tenants import new_key  # noqa: PLC0415
    from service.cli.serve import serving  # noqa: PLC0415
    from service.runtime import open_runtime  # noqa: PLC0415

    key = SecretStr(new_key())
    server = ServerSettings(port=0, keys=[key], drain_s=0)
    settings = settings.model_copy(update={"server": server})
    async with (
        open_runtime(settings) as runtime,
        serving(create_app(settings, lambda: nullcontext(runtime))) as (_, address),
    ):
        yield address, key


@asynccontextmanager
async def open_client(
    settings: Settings, url: str | None = None, again: str = "try again later"
) -> AsyncIterator[Client]:
    """Yield a client of a server, as `open_server` finds it."""
    async with (
        open_server(settings, url) as (base, key), Client(base, key=key, again=again) as client
    ):  # fmt: skip
        yield client
