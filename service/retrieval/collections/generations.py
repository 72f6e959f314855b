"""Generations of a collection on servers: their names, the public aliases, the manifest's copy.

A generation is stored under `<collection>.<number>`: neither Elasticsearch's index nor Qdrant's
collection of one can be taken for another's, since no collection's name has a dot. Searches and
writes name the generation that the manifest names. `revelator-<collection>`, an alias in both
servers, is for other programs' eyes: it follows the manifest and is never read here.
"""

from __future__ import annotations

from typing import Any

from service.core.errors import StoreError
from service.retrieval.collections.manifest import Manifest, parse_manifest
from service.retrieval.stores import elastic_index, qdrant_store
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.qdrant_server import QdrantServer

KEY = "revelator"  # of the manifest in the metadata of Qdrant's collection


def stored_name(name: str, generation: int | str) -> str:
    return f"{name}.{generation}"


async def point_elastic(server: ElasticServer, name: str, generation: int) -> None:
    """The alias leaves every other generation and comes to this one, in one step."""
    alias = elastic_index.alias_of(name)
    ours = elastic_index.alias_of(stored_name(name, generation))
    actions: list[dict[str, Any]] = [
        {"remove": {"index": f"{alias}.*", "alias": alias, "must_exist": False}},
        {"add": {"index": f"{ours}.*", "alias": alias}},
    ]
    await server.call(lambda client: client.indices.update_aliases(actions=actions))


async def point_qdrant(server: QdrantServer, name: str, generation: int) -> None:
    """As `point_elastic`."""
    await server.connect()
    from qdrant_client.models import (  # noqa: PLC0415
        CreateAlias,
        CreateAliasOperation,
        DeleteAlias,
        DeleteAliasOperation,
    )

    alias = qdrant_store.collection_of(name)
    new = CreateAlias(
        collection_name=qdrant_store.collection_of(stored_name(name, generation)), alias_name=alias
    )
    changes: list[Any] = [CreateAliasOperation(create_alias=new)]
    known = await server.call(lambda client: client.get_aliases())
    if any(each.alias_name == alias for each in known.aliases):
        changes.insert(0, DeleteAliasOperation(delete_alias=DeleteAlias(alias_name=alias)))
    await server.call(lambda client: client.update_collection_aliases(changes))


async def drop_elastic(server: ElasticServer, name: str) -> None:
    """Every generation of a collection; there may be none."""
    await elastic_index.drop(server, stored_name(name, "*"))


async def drop_qdrant(server: QdrantServer, name: str) -> None:
    """Every generation of a collection; there may be none."""
    prefix = qdrant_store.collection_of(stored_name(name, ""))
    held = await server.call(lambda client: client.get_collections())
    for each in held.collections:
        if each.name.startswith(prefix):
            await qdrant_store.drop(server, stored_name(name, each.name.removeprefix(prefix)))


async def note_in_qdrant(server: QdrantServer, manifest: Manifest) -> None:
    """Put a copy of the manifest beside its vectors."""
    own = qdrant_store.collection_of(stored_name(manifest.name, manifest.generation))
    metadata = {KEY: manifest.model_dump_json()}
    await server.call(lambda client: client.update_collection(own, metadata=metadata))


async def noted_in_qdrant(server: QdrantServer, manifest: Manifest) -> Manifest | None:
    """The copy beside a manifest's vectors; None where none can be read."""
    own = qdrant_store.collection_of(stored_name(manifest.name, manifest.generation))
    found = await server.call(lambda client: client.get_collection(own))
    try:
        return parse_manifest((found.config.metadata or {})[KEY].encode(), own)
    except (KeyError, StoreError):
        return None
