"""Queries, passages and vectors that are unusual, on every pair of stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.core.errors import InvalidRequest, RevelatorError
from service.retrieval.base import Analysis, SearchRequest
from service.retrieval.collections import writer
from service.retrieval.collections.backends import Backends
from service.retrieval.embedding.contract import Vector
from service.retrieval.search.hybrid import HybridRetriever
from tests.contracts.stores import NAME, QUIET
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, CountingEmbedder, opened

pytestmark = QUIET

REPEATED = {"id": "repeated", "title": "", "text": "opera " * 10_000}
GERMAN = [
    {"id": "oper", "title": "Die Oper", "text": "Die Opern wurden in Häusern der Städte gespielt."},
    {"id": "vulkan", "title": "Vulkane", "text": "Der Vulkan ist bei Catania."},
]
GERMAN_TEXTS = [
    {
        "id": "spielplan",
        "title": "Spielplan",
        "text": "Die Opern von Bellini und Verdi wurden in diesem Jahr nicht gespielt, und das "
        "Theater ist wegen einer Renovierung geschlossen.",
    },
    {
        "id": "hafen",
        "title": "Hafen",
        "text": "Der Hafen der Stadt ist für die Schiffe und das Militär von Bedeutung, auch wird "
        "er mit einer Mauer geschützt.",
    },
]


async def test_odd_queries_and_passages(tmp_path: Path, backends: Backends) -> None:
    embedder = CountingEmbedder()
    async with opened(tmp_path, embedder, backends=backends) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        await collections.create(NAME)
        await ingest_documents([*CORPUS, *GERMAN, REPEATED], NAME, collections)

        async def found(query: str, side: str = "bm25") -> list[str]:
            wanted = SearchRequest(query, 10, NAME, side, widened=True)  # type: ignore[arg-type]
            result = await retriever.search(wanted)
            assert result.missing == ()
            assert all(math.isfinite(hit.score) for hit in result.passages)
            return [hit.passage.passage_id.partition("#")[0] for hit in result.passages]

        assert await found("the") == []
        assert await found("the", "hybrid") != []
        assert await found("\N{VOLCANO}\N{EARTH GLOBE EUROPE-AFRICA}") == []
        assert await found("\N{VOLCANO}\N{EARTH GLOBE EUROPE-AFRICA}", "hybrid") != []
        long = ("volcano near Catania in Sicily, " * 125)[:4_000]
        for side in ("bm25", "dense", "hybrid"):
            assert "etna" in (await found(long, side))[:3]
        # Repetition is worth no more than BM25's limit: it does not hide what has both words.
        order = await found("opera Bellini")
        assert order.index("norma") < order.index("repeated")
        assert "repeated" in await found("opera", "hybrid")
        assert (await found("Häuser Stadte Opern"))[0] == "oper"
        assert (await found("hausern"))[0] == "oper"
        assert {"vulkan", "catania", "etna"} >= set((await found("Catania"))[:3])

        with pytest.raises(InvalidRequest, match="--analysis german"):
            await collections.create(NAME, analysis="german")


@pytest.mark.parametrize(
    ("first", "named", "analysis"),
    [
        (GERMAN_TEXTS, None, "german"),
        (GERMAN_TEXTS, "english", "english"),
        ([*GERMAN_TEXTS[:1], *CORPUS], None, "english"),
    ],
)
async def test_the_first_documents_of_a_new_collection_decide_on_its_analysis(
    tmp_path: Path, backends: Backends, monkeypatch: pytest.MonkeyPatch,
    first: list[dict[str, str]], named: Analysis | None, analysis: str,
) -> None:  # fmt: skip
    if backends.names[0] == "elasticsearch" and analysis == "german":
        # The node of these tests has two analyzers only, `english` and that of `simple`.
        monkeypatch.setattr(writer, "analysis_for", lambda _: "simple")
        analysis = "simple"
    embedder = CountingEmbedder()
    async with opened(tmp_path, embedder, backends=backends) as collections:
        assert (await collections.create(NAME, analysis=named)).analysis == "english"
        await ingest_documents(first, NAME, collections)
        await ingest_documents(CORPUS, NAME, collections)
        manifest = await collections.manifest(NAME)
        assert (manifest.analysis, manifest.state) == (analysis, "complete")
        report = await collections.check(NAME)
        assert (report.settings[0], report.findings) == (f"analysis {analysis}", [])
    async with opened(tmp_path, embedder, backends=backends) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        # Found by its stem alone: in German, in English, and not where words are as they are.
        for form, finds in (("Renovierungen", "german"), ("volcanoes", "english")):
            result = await retriever.search(SearchRequest(form, 5, NAME, "bm25"))
            found = [hit.passage.passage_id for hit in result.passages]
            assert bool({"spielplan", "etna"}.intersection(found)) is (finds == analysis)


class Spoilt(CountingEmbedder):
    """Makes vectors that are no numbers from now on, if told to."""

    spoilt = False

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await super().embed(texts)
        return [[math.nan] * len(each) for each in vectors] if self.spoilt else vectors


async def test_vectors_that_are_no_numbers_are_refused(tmp_path: Path, backends: Backends) -> None:
    embedder = Spoilt()
    async with opened(tmp_path, embedder, backends=backends) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        await collections.create(NAME)
        await ingest_documents(CORPUS[:4], NAME, collections)
        embedder.spoilt = True
        with pytest.raises(RevelatorError, match="not finite"):
            await ingest_documents(CORPUS, NAME, collections)
        with pytest.raises(RevelatorError, match="not finite"):
            await retriever.search(SearchRequest("opera", 3, NAME, "dense"))
        result = await retriever.search(SearchRequest("opera", 3, NAME))
        assert result.passages
        assert "dense" in result.missing
        embedder.spoilt = False
        await ingest_documents(CORPUS, NAME, collections)
        result = await retriever.search(SearchRequest("volcano", 3, NAME, "dense"))
        assert (result.passages[0].passage.passage_id, result.missing) == ("etna", ())
