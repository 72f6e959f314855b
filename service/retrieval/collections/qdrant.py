"""Collections whose dense side is in Qdrant: their aliases, and the copy of the manifest there.

`revelator-<collection>`, an alias, is for other programs. It follows the manifest and is never read
by Revelator: searches and writes name the generation in the manifest.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from service.core.errors import StoreError, StoreLost
from service.core.settings.retrieval import Quantization
from service.retrieval.collections.manifest import Manifest, parse_manifest, stored_name
from service.retrieval.stores import qdrant_store
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore, collection_of

KEY = "revelator"  # key of the manifest in the metadata of Qdrant's collection


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

    async def note(self, manifest: Manifest) -> None:
        own, metadata = collection_of(manifest.stored_name), {KEY: manifest.model_dump_json()}
        with contextlib.suppress(StoreLost):  # a lost collection needs no copy
            await self.server.call(lambda client: client.update_collection(own, metadata=metadata))

    async def agrees(self, manifest: Manifest) -> bool:
        own = collection_of(manifest.stored_name)
        try:
            found = await self.server.call(lambda client: client.get_collection(own))
        except StoreLost:
            return False
        try:
            return parse_manifest((found.config.metadata or {})[KEY].encode(), own) == manifest
        except (KeyError, StoreError):
            return False

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
