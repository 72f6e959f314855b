"""Elasticsearch indices: one per collection, behind an alias, created from our index template.

The template `revelator` applies to every index `revelator-*`. It is composed of two component
templates: `revelator@settings`, which is ours, and `revelator@custom`, which belongs to the
operator and may be absent. Settings in the second one (shards, replicas, allocation, refresh
interval) take precedence for indices created afterwards. We write templates that are absent or
older than ours, and leave those of a newer gateway unchanged.

Neither scores nor the choice between two versions of a passage depend on the number of shards:
searches use the statistics of all shards, and a document's passages share a shard (by routing).
"""

from __future__ import annotations

import uuid
from typing import Any

from service.core.errors import StoreError
from service.retrieval.collections.manifest import Analysis
from service.retrieval.stores.elastic_server import ElasticServer

TEMPLATE = "revelator"
OURS, CUSTOM = f"{TEMPLATE}@settings", f"{TEMPLATE}@custom"
TEMPLATE_VERSION = 1
PRIORITY = 200  # above the catch-all templates that a cluster may have


def alias_of(name: str) -> str:
    return f"revelator-{name}"


async def create(server: ElasticServer, name: str, analysis: Analysis, replace: bool) -> None:
    """Create an empty index under the collection's alias. Raises StoreError if one with documents
    exists, unless `replace`."""
    alias = alias_of(name)
    if await _indices(server, alias) and not replace:
        held = (await server.call(lambda client: client.count(index=alias)))["count"]
        if held:
            raise StoreError(
                f"Elasticsearch at {server.place} has {held:,} passages under {alias!r} that this "
                "data directory does not know; they may belong to another gateway. Use another "
                "collection name, or delete that index"
            )
    await drop(server, name)
    await _put_templates(server)
    # No collection name contains a dot, so no index has the name of another's alias.
    index = f"{alias}.{uuid.uuid4().hex[:12]}"
    await server.call(
        lambda client: client.indices.create(
            index=index,
            mappings=_analysed(analysis),
            aliases={alias: {"is_write_index": True}},
        )
    )


async def rename(server: ElasticServer, name: str, to: str) -> None:
    """Point the alias `to` at the index of `name` instead of its present one, atomically."""
    (index,) = await _indices(server, alias_of(name))
    actions: list[dict[str, Any]] = [
        {"remove": {"index": index, "alias": alias_of(name)}},
        {"add": {"index": index, "alias": alias_of(to), "is_write_index": True}},
    ]
    await server.call(lambda client: client.indices.update_aliases(actions=actions))


async def drop(server: ElasticServer, name: str) -> None:
    """Delete a collection's index, if it exists."""
    indices = await _indices(server, alias_of(name))
    if indices:
        await server.call(
            lambda client: client.indices.delete(index=indices, ignore_unavailable=True)
        )


async def _indices(server: ElasticServer, alias: str) -> list[str]:
    answer = await server.call(
        lambda client: client.options(ignore_status=404).indices.get_alias(name=alias)
    )
    return [] if answer.meta.status == 404 else list(answer.body)


async def _put_templates(server: ElasticServer) -> None:
    stored = await server.call(
        lambda client: client.options(ignore_status=404).indices.get_index_template(name=TEMPLATE)
    )
    if stored.meta.status != 404:
        (found,) = stored["index_templates"]
        if found["index_template"].get("version", 0) >= TEMPLATE_VERSION:
            return
    await server.call(
        lambda client: client.cluster.put_component_template(
            name=OURS, template=_template(), version=TEMPLATE_VERSION
        )
    )
    await server.call(
        lambda client: client.indices.put_index_template(
            name=TEMPLATE,
            index_patterns=["revelator-*"],
            composed_of=[OURS, CUSTOM],
            ignore_missing_component_templates=[CUSTOM],
            priority=PRIORITY,
            version=TEMPLATE_VERSION,
        )
    )


def _template() -> dict[str, Any]:
    keyword = {"type": "keyword"}
    return {
        "settings": {
            "number_of_shards": 1,
            "auto_expand_replicas": "0-1",
            "refresh_interval": "-1",
            "similarity": {"bm25": {"type": "BM25", "k1": 1.2, "b": 0.75}},
        },
        "mappings": {
            "dynamic": False,
            "properties": {
                "passage_id": keyword,
                "document_id": keyword,
                "content_hash": keyword,
                "filter": keyword,
                "part": {"type": "integer"},
                "metadata": {"type": "object", "enabled": False},
                "original": {"type": "object", "enabled": False},
            },
        },
    }


def _analysed(analysis: Analysis) -> dict[str, Any]:
    """Return the part of the mapping that differs between collections."""
    words = {
        "type": "text",
        "analyzer": "english" if analysis == "english" else "standard",
        "similarity": "bm25",
        "index_options": "freqs",
    }
    return {"properties": {"title": words, "text": words}}
