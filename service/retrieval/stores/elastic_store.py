"""BM25 in Elasticsearch: one index per collection, behind an alias (METHODS.md §6 #30, §1.6).

Searches use the statistics of all shards
(`dfs_query_then_fetch`), so scores do not depend on the number of shards; with one shard
Elasticsearch omits that phase. Metadata is one keyword field `filter` of tokens, as in every store,
so no document can change the mapping that others need.

The index does not refresh by itself: `replace` does at its end, so that a search sees all of a
change or none of it.

A passage's id in Elasticsearch combines passage id and content hash, so a new version exists beside
the old one until the old one is deleted. `replace` works in this order: (1) all passages except the
first of each document, (2) the first passages, whose presence makes the document known, (3) the
deletion of old versions. All three are one stream of bulk requests, and a document's passages are
in one shard, which applies them in order. A process killed in between leaves documents without a
first passage, or two versions; `tidy` keeps the version written last and deletes the rest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from anyio import to_thread

from service.core.concurrency import Batcher
from service.core.domain import ScoredPassage
from service.retrieval.base import TIE_BREAKER, Analysis, Principals, SearchRequest, ranked
from service.retrieval.documents import (
    RESTRICTED,
    PassageRecord,
    fields_of,
    filter_tokens,
    metadata_tokens,
    passage_of,
    principal_tokens,
    record_of,
)
from service.retrieval.stores.analysis import fold, paired, query_words
from service.retrieval.stores.base import Key, LexicalStore, foreign, parts, to_its_end
from service.retrieval.stores.elastic_server import Action, ElasticServer

TEMPLATE = "revelator"
OURS, CUSTOM = f"{TEMPLATE}@settings", f"{TEMPLATE}@custom"
PRIORITY = 200  # above the catch-all templates that a cluster may have


def alias_of(name: str) -> str:
    return f"revelator-{name}"


async def create(
    server: ElasticServer, name: str, analysis: Analysis, *, replace: bool = False
) -> ElasticStore:
    """Create an empty index under the collection's alias. Raises StoreError if one with documents
    exists, unless `replace`."""
    alias = alias_of(name)
    if await _indices(server, alias) and not replace:
        held = (await server.call(lambda client: client.count(index=alias)))["count"]
        if held:
            raise foreign(f"Elasticsearch at {server.place}", held, alias)
    await drop(server, name)
    # What the index is made by, and which an operator's own template may change.
    await server.call(
        lambda client: client.cluster.put_component_template(name=OURS, template=_template())
    )
    await server.call(
        lambda client: client.indices.put_index_template(
            name=TEMPLATE,
            index_patterns=["revelator-*"],
            composed_of=[OURS, CUSTOM],
            ignore_missing_component_templates=[CUSTOM],
            priority=PRIORITY,
        )
    )
    # No collection name contains a dot, so no index has the name of another's alias.
    index, aliases = f"{alias}.{uuid.uuid4().hex[:12]}", {alias: {"is_write_index": True}}
    words = _analysed(analysis)
    await server.call(
        lambda client: client.indices.create(index=index, mappings=words, aliases=aliases)
    )
    return ElasticStore(server, name)


async def publish(server: ElasticServer, name: str, stored: str) -> None:
    """Move the public alias of a collection from every other generation to `stored`, in one
    step."""
    alias = alias_of(name)
    actions: list[dict[str, Any]] = [
        {"remove": {"index": f"{alias}.*", "alias": alias, "must_exist": False}},
        {"add": {"index": f"{alias_of(stored)}.*", "alias": alias}},
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
    """Return the part of the mapping that differs between collections, with an analyzer that
    Elasticsearch has by name."""
    words = {
        "type": "text",
        "analyzer": "standard" if analysis == "simple" else analysis,
        "similarity": "bm25",
        "index_options": "freqs",
    }
    return {"properties": {"title": words, "text": words}}


SEARCH_TYPE = "dfs_query_then_fetch"
# The fields that a search reads.
SOURCE = ["passage_id", "title", "text", "original", "metadata"]
MOST_HITS = 10_000  # Elasticsearch's default limit of one page
_FIELDS = ["title", "text"]


def search_body(request: SearchRequest) -> dict[str, Any] | None:
    """Return the body of a search, or None if the query has no words.

    The user's text goes into `match` and `multi_match` only, and only its words, so that nothing in
    it is interpreted as syntax.
    """
    words = " ".join(query_words(request.query))
    if not words:
        return None
    return {
        "size": min(request.top_k, MOST_HITS),
        "query": {"bool": _scored(request, words) | _unscored(request)},
        "_source": SOURCE,
        "track_total_hits": False,
    }


def _scored(request: SearchRequest, words: str) -> dict[str, Any]:
    if request.shape == "best_fields":
        best = {
            "query": words,
            "type": "best_fields",
            "fields": _FIELDS,
            "tie_breaker": TIE_BREAKER,
        }
        return {"must": [{"multi_match": best}]}
    either = [{"match": {field: {"query": words}}} for field in _FIELDS]
    return {"should": either, "minimum_should_match": 1}


def _unscored(request: SearchRequest) -> dict[str, Any]:
    clauses: dict[str, Any] = {}
    if request.filter:
        wanted = filter_tokens(request.filter)
        clauses["filter"] = [{"terms": {"filter": tokens}} for tokens in wanted]
    shut = _hidden(request.principals)
    if request.exclude:
        shut.append({"terms": {"passage_id": sorted(request.exclude)}})
    if shut:
        clauses["must_not"] = shut
    return clauses


def _hidden(principals: Principals) -> list[dict[str, Any]]:
    """Return queries for the passages that must not be found."""
    tokens = principal_tokens(principals)
    if tokens is None:
        return []
    allowed = [{"terms": {"filter": tokens}}]
    return [{"bool": {"filter": [{"term": {"filter": RESTRICTED}}], "must_not": allowed}}]


_NAMESPACE = uuid.UUID("0e4bd0c5-3c0b-4f0c-8a55-0c1d7b3e2a17")
_RECORD = [*SOURCE, "document_id", "content_hash", "part", "parts"]
MOST_SEARCHES = 64  # searches in one _msearch
SCAN = 1_000  # passages per page of a listing
_WILDCARDS = re.compile(r"[*?\\]")
_FIRST: dict[str, Any] = {"term": {"part": 0}}  # passages of documents


class ElasticStore(LexicalStore):
    backend = "elasticsearch"

    def __init__(self, server: ElasticServer, name: str) -> None:
        self._server = server
        self._alias = alias_of(name)
        self._batcher = Batcher[dict[str, Any], list[ScoredPassage]](
            self._search_all, MOST_SEARCHES
        )

    async def search(self, request: SearchRequest) -> list[ScoredPassage]:
        """Return the best passages. Searches made in one turn of the event loop are sent as one
        `_msearch`."""
        body = search_body(request)
        return await self._batcher.ask(body) if body else []

    async def count_passages(self) -> int:
        return await self._count({"match_all": {}})

    async def constants(self) -> str:
        """Return those of the index, which may be from the template `revelator@custom`."""
        answer = await self._server.call(
            lambda client: client.indices.get_settings(index=self._alias)
        )
        (index,) = dict(answer).values()
        bm25 = index["settings"]["index"].get("similarity", {}).get("bm25", {})
        return f"k1 {bm25.get('k1', 1.2)} and b {bm25.get('b', 0.75)}"

    async def counts(self, principals: Principals) -> tuple[int, int]:
        hidden = _hidden(principals)
        first = {"bool": {"filter": [_FIRST], "must_not": hidden}}
        return await self._count(first), await self._count({"bool": {"must_not": hidden}})

    async def among(self, field: Key, values: Sequence[str]) -> list[PassageRecord]:
        found: list[PassageRecord] = []
        for part in parts(values, SCAN):
            wanted = [{"terms": {"document_id" if field == "head" else field: part}}]
            query = {"bool": {"filter": [*wanted, _FIRST] if field == "head" else wanted}}
            found += [_record(hit) async for hits in self._hits(query, _RECORD) for hit in hits]
        return found

    async def heads(
        self, after: str, most: int, principals: Principals, *, file: str = "", text: str = ""
    ) -> list[PassageRecord]:
        wanted: list[dict[str, Any]] = [_FIRST, {"range": {"document_id": {"gt": after}}}]
        if file:
            either = [{"term": {"document_id": file}}, {"prefix": {"document_id": f"{file}#"}}]
            wanted.append({"bool": {"should": either}})
        if text:
            part = "*" + _WILDCARDS.sub(r"\\\g<0>", text) + "*"
            found: list[dict[str, Any]] = [
                {"wildcard": {"document_id": {"value": part, "case_insensitive": True}}},
                {"match": {"title": {"query": text, "operator": "and"}}},
            ]
            wanted.append({"bool": {"should": found}})
        query = {"bool": {"filter": wanted, "must_not": _hidden(principals)}}
        return [_record(hit) for hit in await self._page(query, _RECORD, ["document_id"], most)]

    async def records(self) -> AsyncIterator[list[PassageRecord]]:
        async for hits in self._hits({"match_all": {}}, _RECORD):
            yield [_record(hit) for hit in hits]

    async def replace(self, document_ids: Sequence[str], records: Sequence[PassageRecord]) -> None:
        """Delete these documents and add `records`. The next search sees all of the change."""
        old: dict[str, str | None] = {}
        for part in parts(document_ids, SCAN):
            query = {"terms": {"document_id": part}}
            async for hits in self._hits(query, []):
                old |= {hit["_id"]: hit.get("_routing") for hit in hits}
        heads_last = sorted(records, key=lambda record: record.part == 0)
        new = await to_thread.run_sync(lambda: [_index(record) for record in heads_last])
        left = sorted(old.keys() - {_id(record) for record in records})
        gone = [_delete(own_id, old[own_id]) for own_id in left]
        await to_its_end(self._write([*new, *gone]))

    async def tidy(self) -> None:
        """Undo a `replace` that was interrupted by a kill."""
        await self._refresh()
        newest, fields = dict[str, str](), ["document_id", "content_hash"]
        async for hits in self._hits(_FIRST, fields):
            newest |= {hit["_source"][fields[0]]: hit["_source"][fields[1]] for hit in hits}
        stray = [
            _delete(hit["_id"], hit.get("_routing"))
            async for hits in self._hits({"match_all": {}}, fields)
            for hit in hits
            if newest.get(hit["_source"]["document_id"]) != hit["_source"]["content_hash"]
        ]
        if stray:
            await to_its_end(self._write(stray))

    async def release(self) -> None:
        """Do nothing: the client belongs to the server."""

    close = release

    async def _search_all(
        self, bodies: Sequence[dict[str, Any]]
    ) -> list[list[ScoredPassage] | Exception]:
        head = {
            "index": self._alias,
            "search_type": SEARCH_TYPE,
            "allow_partial_search_results": False,
        }
        searches = [line for body in bodies for line in (head, body)]
        answer = await self._server.call(lambda client: client.msearch(searches=searches))
        return [self._answer(response) for response in answer["responses"]]

    def _answer(self, response: dict[str, Any]) -> list[ScoredPassage] | Exception:
        if "error" in response:
            return self._server.failure(response.get("status", 500), response)
        hits = response["hits"]["hits"]
        return ranked((hit["_score"], passage_of(_fields(hit))) for hit in hits)

    async def _write(self, actions: Sequence[Action]) -> None:
        await self._server.bulk(self._alias, actions)
        await self._refresh()

    async def _refresh(self) -> None:
        await self._server.call(lambda client: client.indices.refresh(index=self._alias))

    async def _count(self, query: dict[str, Any]) -> int:
        answer = await self._server.call(
            lambda client: client.count(index=self._alias, query=query)
        )
        return int(answer["count"])

    async def _hits(
        self, query: dict[str, Any], source: list[str]
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield all hits, in pages, in the order in which they were written."""
        after: dict[str, Any] = {}
        while hits := await self._page(query, source, ["_seq_no", "passage_id"], SCAN, **after):
            yield hits
            if len(hits) < SCAN:
                return
            after = {"search_after": hits[-1]["sort"]}

    async def _page(
        self, query: dict[str, Any], source: list[str], sort: list[str], size: int, **more: Any
    ) -> list[dict[str, Any]]:
        body = {
            "query": query, "source": source, "sort": sort, "size": size,
            "track_total_hits": False, "allow_partial_search_results": False, **more,
        }  # fmt: skip
        answer = await self._server.call(lambda client: client.search(index=self._alias, **body))
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        return hits


def _id(record: PassageRecord) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{record.content_hash} {record.passage.passage_id}"))


def _delete(own_id: str, routing: str | None) -> Action:
    return orjson.dumps({"delete": {"_id": own_id, "routing": routing}}), None


def _index(record: PassageRecord) -> Action:
    passage = record.passage
    title, text = paired(fold(passage.title)), paired(fold(passage.text))
    source: dict[str, Any] = {
        **fields_of(record),
        "title": title,
        "text": text,
        "filter": metadata_tokens(passage.metadata),
    }
    if (title, text) != (passage.title, passage.text):
        source["original"] = {"title": passage.title, "text": passage.text}
    line = {"index": {"_id": _id(record), "routing": record.document_id}}
    return orjson.dumps(line), orjson.dumps(source)


def _record(hit: dict[str, Any]) -> PassageRecord:
    return record_of(_fields(hit))


def _fields(hit: dict[str, Any]) -> dict[str, Any]:
    return {**hit["_source"], **hit["_source"].get("original", {})}
