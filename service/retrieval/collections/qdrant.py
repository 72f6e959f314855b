"""Collections whose dense side is in Qdrant, and their aliases.

`revelator-<collection>`, an alias, is for other programs. It follows the manifest and is never read
by Revelator: searches and writes name the generation in the manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.core.settings.retrieval import Quantization
from service.retrieval.collections.manifest import Manifest, stored_name
from service.retrieval.stores import qdrant_store
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore, collection_of


class Qdrant:
    """The dense side of all collections, on one cluster."""

    name = QdrantStore.backend

    def __init__(self, server: QdrantServer, quantization: Quantization) -> None:
        self.server = server
        self._quantization = quantization

    def create(self, folder: Path, manifest: Manifest, *, replace: bool) -> QdrantStore:
        return QdrantStore.create(
            self.server,
            manifest.stored_name,
            manifest.embedding,
            self._quantization,
            replace=replace,
        )

    def open(self, folder: Path, manifest: Manifest) -> QdrantStore:
        return QdrantStore(self.server, manifest.stored_name, self._quantization)

    async def publish(self, manifest: Manifest) -> None:
        """Move the alias from another generation to this one, in one step."""
        await self.server.connect()
        from qdrant_client.models import (  # noqa: PLC0415
            CreateAlias,
            CreateAliasOperation,
            DeleteAlias,
            DeleteAliasOperation,
        )

        alias = collection_of(manifest.name)
        new = CreateAlias(collection_name=collection_of(manifest.stored_name), alias_name=alias)
        changes: list[Any] = [CreateAliasOperation(create_alias=new)]
        known = await self.server.call(lambda client: client.get_aliases())
        if any(each.alias_name == alias for each in known.aliases):
            changes.insert(0, DeleteAliasOperation(delete_alias=DeleteAlias(alias_name=alias)))
        await self.server.call(lambda client: client.update_collection_aliases(changes))

    async def drop(self, name: str, generation: int | None = None) -> None:
        if generation is not None:
            await qdrant_store.drop(self.server, stored_name(name, generation))
            return
        prefix = collection_of(stored_name(name, ""))
        held = await self.server.call(lambda client: client.get_collections())
        for each in held.collections:
            if each.name.startswith(prefix):
                number = each.name.removeprefix(prefix)
                await qdrant_store.drop(self.server, stored_name(name, number))

    async def transport(self) -> tuple[str, str] | None:
        return self.server.place, await self.server.spoken()

    async def aclose(self) -> None:
        await self.server.aclose()
