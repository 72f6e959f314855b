"""`revelator collections`, in this process or through the server that owns the data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console
from rich.table import Table

from service.core.locks import find_owner
from service.core.settings import Settings
from service.retrieval.collections.manifest import check_name
from service.retrieval.collections.registry import Collections, describe
from service.retrieval.opened import open_embedded
from service.retrieval.remote import send, session_with

if TYPE_CHECKING:
    import aiohttp

TIMEOUT_S: Final = 330.0  # a deletion waits for the questions that run on the collection

Told = Mapping[str, Any]  # a collection, as HTTP shows it


class _Place(Protocol):
    async def list(self) -> Sequence[Told]: ...

    async def show(self, name: str) -> Told: ...

    async def delete(self, name: str) -> None: ...


class _Here:
    def __init__(self, collections: Collections) -> None:
        self._collections = collections

    async def list(self) -> Sequence[Told]:
        return [describe(each) for each in await self._collections.manifests()]

    async def show(self, name: str) -> Told:
        return describe(await self._collections.manifest(name))

    async def delete(self, name: str) -> None:
        await self._collections.delete(name)


class _Through:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._base = f"{url.rstrip('/')}/collections"

    async def list(self) -> Sequence[Told]:
        found: Sequence[Told] = (await send(self._session, "GET", self._base))["collections"]
        return found

    async def show(self, name: str) -> Told:
        found: Told = await send(self._session, "GET", f"{self._base}/{name}")
        return found

    async def delete(self, name: str) -> None:
        await send(self._session, "DELETE", f"{self._base}/{name}")


async def list_collections(settings: Settings, *, url: str | None = None) -> None:
    """Print the collections as a table. Raises RevelatorError."""
    async with _place(settings, url) as place:
        found = await place.list()
    table = Table("collection", "documents", "passages", "state", "embedding", box=None)
    for each in found:
        table.add_row(
            each["name"],
            f"{each['documents']:,}",
            f"{each['passages']:,}",
            each["state"],
            each["embedding_model"],
        )
    Console().print(table)


async def show_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Print a collection's fields, one per line. Raises RevelatorError."""
    check_name(name)
    async with _place(settings, url) as place:
        found = await place.show(name)
    console = Console()
    for field, value in found.items():
        told = ", ".join(value) if isinstance(value, list | tuple) else value
        console.print(f"{field}: {told}", highlight=False, markup=False, soft_wrap=True)


async def delete_collection(settings: Settings, name: str, *, url: str | None = None) -> None:
    """Delete a collection and all its documents. Raises RevelatorError."""
    check_name(name)
    async with _place(settings, url) as place:
        await place.delete(name)
    Console().print(f"Collection {name} was deleted.", highlight=False, markup=False)


@asynccontextmanager
async def _place(settings: Settings, url: str | None) -> AsyncIterator[_Place]:
    """The server at `url`, else the one that owns the data directory, else this process."""
    owner = find_owner(settings.data_dir) if url is None else None
    base = url or (owner.url if owner else None)
    if base:
        async with session_with(base, settings, TIMEOUT_S) as session:
            yield _Through(session, base)
    else:
        async with open_embedded(settings) as stores:
            yield _Here(stores.collections)
