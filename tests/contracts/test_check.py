"""`check` finds what differs between manifest and stores, `repair` repairs it, on every pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from service.core.errors import ConfigurationError, StoreError
from service.retrieval.base import SearchRequest
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.documents import Document, PassageRecord, passages_of
from service.retrieval.embedding.contract import Vector
from service.retrieval.reports import Finding
from service.retrieval.search.hybrid import HybridRetriever
from tests.contracts.stores import NAME, QUIET
from tests.contracts.test_writer import LONG
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, contents, opened

pytestmark = QUIET

WHOLE = {"norma", "bellini", "tosca", "catania", "etna"}


async def upsert(collections: Collections, records: list[PassageRecord]) -> None:
    collection = await collections.get(NAME)
    vectors = await CountingEmbedder().embed_passages([r.passage.text for r in records])
    await collection.dense.upsert(records, vectors)


async def spoil(collections: Collections) -> None:
    """One of each kind of difference: no vector, another version's, no passage; other counts."""
    collection = await collections.get(NAME)
    await collection.dense.delete(["etna"])
    await upsert(collections, passages_of(Document("tosca", "Tosca", "Another text.")))
    await upsert(collections, passages_of(Document("half", "", LONG)))
    if collection.bm25.backend == "elasticsearch":
        # As a kill before the first passages of a document leaves it.
        strays = passages_of(Document("stray", "", LONG))[1:3]
        await collection.bm25.replace([], strays)
    manifest = collection.manifest
    await collection.save(manifest.model_copy(update={"documents": 9, "content_hash": "0" * 64}))


class Followed(list[tuple[str, int, int]]):
    """How far the stages of a work were, as told."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.append((stage, done, total))

    def stages(self) -> list[str]:
        """The stages in their order. Each counts from nothing to its end, without going back."""
        found = [(stage, [*told]) for stage, told in groupby(self, itemgetter(0))]
        for _, told in found:
            counts = [done for _, done, _ in told]
            assert counts == sorted(counts)
            assert (counts[0], counts[-1]) == (0, told[-1][2])
        return [stage for stage, _ in found]


def kinds(findings: list[Finding]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for finding in findings:
        counted[finding.kind] = counted.get(finding.kind, 0) + (finding.count or 1)
    return counted


async def test_differences_are_found_shown_and_repaired(tmp_path: Path, backends: Backends) -> None:
    embedder = CountingEmbedder()
    async with opened(tmp_path, embedder, backends=backends) as collections:
        await collections.create(NAME)
        await ingest_documents(CORPUS, NAME, collections)
        before = await collections.manifest(NAME)
        whole = await collections.check(NAME)
        assert (whole.documents, whole.passages, whole.vectors) == (5, 5, 5)
        assert whole.findings == []
        fixed = ", which are fixed" if backends.names[0] == "tantivy" else ""
        assert whole.settings == [
            "analysis english",
            f"BM25 with k1 1.2 and b 0.75{fixed}",
            "vectors of hashing-384, quantization none",
        ]

        await spoil(collections)
        half = len(passages_of(Document("half", "", LONG)))
        expected = {"lacking": 1, "outdated": 1, "surplus": half, "manifest": 2}
        if backends.names[0] == "elasticsearch":
            expected["stray"] = 2
        report = await collections.check(NAME)
        assert kinds(report.findings) == expected
        shown = {finding.kind: finding.ids for finding in report.findings}
        assert (shown["lacking"], shown["outdated"]) == (["etna"], ["tosca"])
        assert all(passage_id.startswith("half#") for passage_id in shown["surplus"])
        assert len(shown["surplus"]) <= 5

        embedder.passages, followed = 0, Followed()
        report = await collections.check(NAME, repair=True, follow=followed)
        assert followed.stages() == ["comparing", "repairing", "comparing"]
        assert kinds(report.findings) == expected
        assert report.left == []
        assert embedder.passages == 2
        assert "passages embedded: 2" in report.done
        assert await collections.manifest(NAME) == before
        bm25, dense = await contents(await collections.get(NAME))
        assert bm25 == dense
        assert bm25.keys() == WHOLE

        again = await collections.check(NAME, repair=True)
        assert (again.findings, again.done) == ([], [])


class OtherEmbedder(CountingEmbedder):
    """The same numbers turned round, under another contract."""

    contract = CountingEmbedder.contract.model_copy(update={"revision": 2})

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return [vector[::-1] for vector in await super().embed_passages(texts)]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return [vector[::-1] for vector in await super().embed_queries(texts)]


async def test_another_embedding_is_told_and_embedded_again(
    tmp_path: Path, backends: Backends
) -> None:
    long = {"id": "half", "title": "", "text": LONG}
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME, description="kept")
        await ingest_documents([*CORPUS, long], NAME, collections)
        before = await collections.manifest(NAME)
    embedder = OtherEmbedder()
    async with opened(tmp_path, embedder, backends=backends) as collections:
        report = await collections.check(NAME)
        assert kinds(report.findings) == {"embedding": 1}
        assert "--repair" in report.findings[0].detail
        with pytest.raises(ConfigurationError, match="--repair"):
            await ingest_documents([{"id": "new", "title": "", "text": "New."}], NAME, collections)

        followed = Followed()
        report = await collections.check(NAME, repair=True, follow=followed)
        assert followed.stages() == ["comparing", "embedding", "repairing", "comparing"]
        assert kinds(report.findings) == {"embedding": 1}
        assert report.left == []
        assert embedder.passages == before.passages
        assert report.done == [f"passages embedded again: {before.passages}"]
        after = await collections.manifest(NAME)
        new = {"generation": after.generation, "embedding": embedder.contract}
        assert after.generation > before.generation
        assert after.model_copy(update={"leftovers": {}}) == before.model_copy(update=new)
        bm25, dense = await contents(await collections.get(NAME))
        assert bm25 == dense
        assert len(bm25) == before.passages

        retriever = HybridRetriever(collections, embedder, SETTINGS)
        found = await retriever.search(SearchRequest("volcano", 1, NAME, retriever="dense"))
        assert [hit.passage.passage_id for hit in found.passages] == ["etna"]


async def test_a_store_that_lost_everything_is_not_gone_by(
    tmp_path: Path, backends: Backends
) -> None:
    async with opened(tmp_path, backends=backends) as collections:
        await collections.create(NAME)
        await ingest_documents(CORPUS, NAME, collections)
        collection = await collections.get(NAME)
        await collection.bm25.replace(sorted(WHOLE), [])
        with pytest.raises(StoreError, match="ingest the documents again"):
            await collections.check(NAME, repair=True)
        assert await collection.dense.count_passages() == 5
        embedder = CountingEmbedder()
    async with opened(tmp_path, embedder, backends=backends) as collections:
        await ingest_documents(CORPUS, NAME, collections)
        assert embedder.passages == 0
        assert (await collections.check(NAME)).findings == []
