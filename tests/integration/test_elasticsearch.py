"""The Elasticsearch store on a real server: what the contracts of retrieval do not ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.concurrency import gather
from service.core.errors import StoreError
from service.retrieval.base import SearchRequest
from service.retrieval.documents import Document, PassageRecord, passages_of
from service.retrieval.stores import elastic_store
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.elastic_store import ElasticStore, create
from tests.server_nodes import running_elasticsearch
from tests.support.bm25 import bm25

NAME = "tried"
ALIAS = "revelator-tried"
TEXTS = {
    "a": "river bridge river stone",
    "b": "bridge tower",
    "c": "tower stone wall gate moat",
    "d": "river",
}
LONG = " ".join(f"Passage {n} speaks of word{n} and of nothing else at all." for n in range(120))


def records(texts: dict[str, str]) -> list[PassageRecord]:
    return [record for i, text in texts.items() for record in passages_of(Document(i, "", text))]


class CountingServer(ElasticServer):
    """Counts the requests, those of many searches apart."""

    def __init__(self, url: str) -> None:
        super().__init__(url, 5.0)
        self.requests: Counter[str] = Counter()

    async def call(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        answer = await super().call(request)
        many = isinstance(getattr(answer, "body", None), dict) and "responses" in answer
        self.requests["msearch" if many else "other"] += 1
        return answer

    async def has_index(self) -> bool:
        return bool(await self.call(lambda client: client.indices.exists(index=ALIAS)))


@pytest.fixture
async def server(elasticsearch_url: str) -> AsyncIterator[CountingServer]:
    made = CountingServer(elasticsearch_url)
    await elastic_store.drop(made, NAME)
    yield made
    await elastic_store.drop(made, NAME)
    await made.aclose()


@pytest.fixture
async def store(server: CountingServer) -> ElasticStore:
    return await create(server, NAME, "english")


async def replace(store: ElasticStore, ids: list[str], new: list[PassageRecord]) -> None:
    await store.replace(ids, new)


async def contents(store: ElasticStore) -> dict[str, str]:
    found = [record async for page in store.records() for record in page]
    return {record.passage.passage_id: record.passage.text for record in found}


async def test_searches_of_one_turn_are_one_request(
    store: ElasticStore, server: CountingServer
) -> None:
    await replace(store, [], records(TEXTS))
    await store.search(SearchRequest("river", 3, "c"))  # refreshes
    server.requests.clear()
    queries = [SearchRequest(text, 3, "c") for text in ("river", "tower", "???", "nothing")]
    found = await gather([lambda query=query: store.search(query) for query in queries])  # type: ignore[misc]
    assert [set(found_ids(hits)) for hits in found] == [{"a", "d"}, {"b", "c"}, set(), set()]
    assert server.requests == {"msearch": 1}
    assert [await store.search(query) for query in queries] == found


def found_ids(hits: Any) -> list[str]:
    return [hit.passage.passage_id for hit in hits]


async def test_a_change_is_seen_whole_or_not_at_all(
    store: ElasticStore, server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short before the old version goes; tidied, the newer one stands alone."""
    await replace(store, [], records({"a": "an old tower", "b": "a bridge"}))
    real = server.bulk

    async def breaks(alias: str, actions: Any) -> None:
        await real(alias, [action for action in actions if b"delete" not in action[0]])
        raise StoreError("broke")

    monkeypatch.setattr(server, "bulk", breaks)
    with pytest.raises(StoreError, match="broke"):
        await replace(store, ["a"], records({"a": LONG}))
    assert found_ids(await store.search(SearchRequest("tower", 3, "c"))) == ["a"]
    assert await store.search(SearchRequest("word7", 3, "c")) == []

    monkeypatch.undo()
    await store.tidy()
    assert await store.search(SearchRequest("tower", 3, "c")) == []
    assert len(await store.search(SearchRequest("word7", 3, "c"))) >= 1
    hashes = await store.hashes(["a", "b", "no"])
    assert hashes == {
        "a": Document("a", "", LONG).content_hash, "b": Document("b", "", "a bridge").content_hash,
    }  # fmt: skip
    assert set(await contents(store)) == {
        record.passage.passage_id for record in records({"a": LONG, "b": "a bridge"})
    }


async def test_more_than_one_page_is_listed(
    store: ElasticStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_store, "SCAN", 7)
    texts = {f"d{n}": f"text {n}" for n in range(30)}
    await replace(store, [], records(texts))
    assert await contents(store) == texts
    assert len(await store.hashes(list(texts))) == 30
    await replace(store, list(texts), records({"d0": "new"}))
    assert await contents(store) == {"d0": "new"}


async def test_a_lost_index_is_an_error_and_not_made_anew(
    store: ElasticStore, server: CountingServer
) -> None:
    await elastic_store.drop(server, NAME)
    with pytest.raises(StoreError, match="no such index"):
        await replace(store, [], records(TEXTS))
    with pytest.raises(StoreError, match="no such index"):
        await store.search(SearchRequest("river", 3, "c"))
    assert not await server.has_index()


async def test_an_operator_decides_of_shards_and_loses_nothing(
    elasticsearch_script: Path, tmp_path: Path
) -> None:
    """On a node of its own: a component template holds for every collection of a cluster."""
    with running_elasticsearch(elasticsearch_script, data=tmp_path) as node:
        server = CountingServer(node.url)
        await server.call(
            lambda client: client.cluster.put_component_template(
                name=elastic_store.CUSTOM, template={"settings": {"number_of_shards": 3}}
            )
        )
        store = await create(server, NAME, "english")
        settings = await server.call(lambda client: client.indices.get_settings(index=ALIAS))
        (index,) = settings.body.values()
        assert index["settings"]["index"]["number_of_shards"] == "3"
        assert index["settings"]["index"]["number_of_replicas"] == "0"
        assert index["settings"]["index"]["similarity"]["bm25"]["k1"] == "1.2"

        texts = {f"{i}{n}": text for n in range(3) for i, text in TEXTS.items()}
        await replace(store, [], records(texts))
        hits = await store.search(SearchRequest("river bridge", 20, "c"))
        assert {h.passage.passage_id: h.score for h in hits} == pytest.approx(
            bm25(["river", "bridge"], texts), rel=1e-5
        )
        await replace(store, list(texts), records({"a0": LONG}))
        assert set(await contents(store)) == {
            record.passage.passage_id for record in records({"a0": LONG})
        }
        await server.aclose()
