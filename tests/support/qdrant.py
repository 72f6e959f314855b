"""qdrant-client's engine in this process, in place of a Qdrant server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from qdrant_client import AsyncQdrantClient

from service.core.errors import StoreError, StoreLost
from service.retrieval.stores.qdrant_server import QdrantServer

Answer = TypeVar("Answer")


class QdrantInMemory(QdrantServer):
    def __init__(self, timeout_s: float = 1.0) -> None:
        super().__init__("http://memory:6333", timeout_s)

    def _open(self) -> AsyncQdrantClient:
        return AsyncQdrantClient(":memory:")

    async def call(self, request: Callable[[AsyncQdrantClient], Awaitable[Answer]]) -> Answer:
        """Where a server refuses a request, the engine raises ValueError."""
        client = await self.connect()
        try:
            return await request(client)
        except (ValueError, KeyError) as error:
            lost = "not found" in str(error)
            kind = StoreLost if lost else StoreError
            raise kind(f"{error}; --repair rebuilds it, or another embedding model") from error
