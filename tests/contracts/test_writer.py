"""What is written can be found, changed, deleted and repaired, on every pair of stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.core.errors import NotFound, StoreError
from service.retrieval.base import SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.documents import MOST_LEVELS, Document
from service.retrieval.search.hybrid import HybridRetriever
from tests.contracts.stores import NAME, QUIET, WORLDS
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, contents, opened

pytestmark = QUIET

LONG = " ".join(f"Passage {n} speaks of word{n} and of nothing else at all." for n in range(120))
FEW = 3  # passages that LONG has at least


async def ids(collections: Collections, *, after: str = "", most: int = 99, **of: str) -> list[str]:
    return [each.document_id for each in await collections.heads(NAME, after, most, **of)]


async def found(collections: Collections, query: str) -> list[str]:
    retriever = HybridRetriever(collections, CountingEmbedder(), SETTINGS)
    result = await retriever.search(SearchRequest(query, 3, NAME, retriever="bm25"))
    return [hit.passage.text for hit in result.passages]


async def test_documents_are_written_changed_and_deleted(
    tmp_path: Path, backends: Backends
) -> None:
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
        long = {"id": "long", "title": "Long", "text": LONG, "kind": "long"}
        report = await ingest_documents([*CORPUS, long], NAME, collections)
        assert (report["indexed"], report["unchanged"], report["failed"]) == (6, 0, [])
        stored = await collections.document(NAME, "long")
        assert len(stored) > FEW
        assert [record.part for record in stored] == list(range(len(stored)))
        manifest = await collections.manifest(NAME)
        assert (manifest.documents, manifest.passages) == (6, 5 + len(stored))
        assert manifest.stores == backends.names

        again = await ingest_documents([*CORPUS, long], NAME, collections)
        assert (again["indexed"], again["unchanged"]) == (0, 6)

        await ingest_documents([{"id": "long", "text": "Shört now."}], NAME, collections)
        assert await found(collections, "word119") == []
        assert await found(collections, "short") == ["Shört now."]
        await collections.delete_document(NAME, "norma")
        with pytest.raises(NotFound):
            await collections.document(NAME, "norma")
        assert "norma" not in await found(collections, "Norma")
        bm25, dense = await contents(await collections.get(NAME))
        assert bm25 == dense
        assert bm25.keys() == {"bellini", "tosca", "catania", "etna", "long"}
        manifest = await collections.manifest(NAME)
        assert (manifest.documents, manifest.passages) == (5, 5)


async def test_documents_are_listed_by_their_ids(tmp_path: Path, backends: Backends) -> None:
    documents = [
        Document("b", "The Tower Bridge", LONG, {"year": 1894}),
        Document("a*c", "Bridges", "Text."),
        Document("a", "", "Text."),
        Document("Ä?\\", "Old tower", "Text."),
    ]
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
        assert await ids(collections) == []
        async with collections.writing(NAME) as writer:
            await writer.write(documents)
        assert await ids(collections) == ["a", "a*c", "b", "Ä?\\"]
        assert await ids(collections, most=2) == ["a", "a*c"]
        assert await ids(collections, after="a*c", most=1) == ["b"]
        assert await ids(collections, after="Ä?\\") == []
        for text, found in {
            "A": ["a", "a*c"], "*": ["a*c"], "?\\": ["Ä?\\"], "tower bridges": ["b"],
            "TOWER": ["b", "Ä?\\"], "the text": [], "a b": [],
        }.items():  # fmt: skip
            assert await ids(collections, text=text) == found, text
        [long] = await collections.heads(NAME, "a*c", 1)
        assert (long.part, dict(long.passage.metadata)) == (0, {"year": 1894})
        assert long.parts >= FEW


async def test_what_a_file_was_cut_into_is_found_by_its_name(
    tmp_path: Path, backends: Backends
) -> None:
    """Whatever is in the name, and in what follows it, also in ids that are refused now. A name
    may be as long as an id, 512 bytes."""
    names = ["a.html", "b c+(1)[x]{2}.pdf", r"^c\d$|.~&-.pdf", "ä日.docx", "é" * 250, "." * 500]
    ends = ["", "#page=1", "#two\nlines", "x", ".old#page=1", "$"]
    documents = [Document(name + end, "", "Text.") for name in names for end in ends]
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
        async with collections.writing(NAME) as writer:
            await writer.write(documents)
        for name in names:
            found = await ids(collections, file=name)
            assert found == [name, f"{name}#page=1", f"{name}#two\nlines"]
        async with collections.writing(NAME) as writer:
            assert await writer.keep_of_file("a.html", {"a.html#page=1", "new"}) == 2
            assert await writer.keep_of_file("none", ()) == 0
        assert await ids(collections, file="a.html") == ["a.html#page=1"]
        bm25, dense = await contents(await collections.get(NAME))
        assert bm25 == dense
        assert bm25.keys() == {each.id for each in documents} - {"a.html", "a.html#two\nlines"}
        assert (await collections.manifest(NAME)).documents == len(documents) - 2


async def test_the_most_deeply_nested_metadata_comes_and_goes(
    tmp_path: Path, backends: Backends
) -> None:
    listed: Any = 1
    nested: Any = 1
    for _ in range(MOST_LEVELS):
        listed, nested = [listed], {"a": nested}
    documents = [{"id": "deep", "text": "Text.", "listed": listed, "nested": nested}, CORPUS[0]]
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
        report = await ingest_documents(documents, NAME, collections)
        assert (report["indexed"], report["failed"]) == (2, [])
        [record] = await collections.document(NAME, "deep")
        assert record.passage.metadata == {"listed": listed, "nested": nested}
        retriever = HybridRetriever(collections, CountingEmbedder(), SETTINGS)
        result = await retriever.search(SearchRequest("text", 1, NAME, retriever="dense"))
        assert result.passages
        await collections.delete_document(NAME, "deep")
        bm25, dense = await contents(await collections.get(NAME))
        assert bm25 == dense
        assert bm25.keys() == {"norma"}


async def test_a_collection_is_there_after_a_restart(tmp_path: Path, backends: Backends) -> None:
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
        await ingest_documents(CORPUS, NAME, collections)
        before = await collections.manifest(NAME)
    async with opened(tmp_path, backends=backends) as collections:
        assert await collections.manifest(NAME) == before
        assert "Norma is an opera by Vincenzo Bellini." in await found(collections, "Norma")
        await collections.delete(NAME)
        assert NAME not in await collections.names()
        await collections.create(NAME)
        assert await found(collections, "Norma") == []


async def test_another_data_directory(tmp_path: Path, backends: Backends) -> None:
    """Where Elasticsearch holds the manifests it finds what is there; else it has its own."""
    async with opened(tmp_path / "one", backends=backends) as first:
        await first.create(NAME)
        await ingest_documents(CORPUS, NAME, first)
        async with opened(tmp_path / "two", backends=backends) as second:
            if backends.names[0] == "elasticsearch":
                assert await second.manifest(NAME) == await first.manifest(NAME)
                assert await found(second, "Norma") == await found(first, "Norma")
            elif backends.names[1] == "qdrant":
                assert NAME not in await second.names()
                with pytest.raises(StoreError, match=r"has 5 .* another gateway"):
                    await second.create(NAME)
            else:
                assert (await second.create(NAME)).documents == 0
        assert await found(first, "Norma")


async def test_other_settings_than_a_collection_was_made_with(
    tmp_path: Path, backends: Backends
) -> None:
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
    other: Any = WORLDS["tantivy and Qdrant in memory"](None)  # type: ignore[arg-type]
    other = Backends() if other.names == backends.names else other
    async with opened(tmp_path, backends=other) as collections:
        with pytest.raises(
            StoreError, match=r"is stored in .* restore retrieval.elasticsearch_url"
        ):
            await collections.get(NAME)
    await other.aclose()
