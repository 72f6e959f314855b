"""An embedding server that goes and comes back: BM25 answers meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from aiohttp import web

from service.core.settings import EmbeddingSettings, RetrievalSettings
from service.retrieval.base import SearchRequest
from service.retrieval.embedding import EmbeddingContract, HashingEmbedder
from service.retrieval.embedding.http import HttpEmbedder
from service.retrieval.search import guard
from service.retrieval.search.guard import GuardLimits
from service.retrieval.search.hybrid import HybridRetriever
from tests.support.documents import ingest_documents
from tests.support.stub_server import stub_server
from tests.unit.retrieval.worlds import CORPUS, Observed, opened

pytestmark = pytest.mark.anyio

SETTINGS = RetrievalSettings()


@pytest.fixture(autouse=True)
def _quick_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LIMITS", GuardLimits(failures=2, open_s=0.1))


async def embeddings(request: web.BaseRequest) -> web.Response:
    texts = orjson.loads(await request.read())["input"]
    vectors = await HashingEmbedder().embed_queries(texts)
    rows = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return web.json_response({"data": rows})


@pytest.fixture
async def port() -> int:
    """Of a server that has gone."""
    async with stub_server(embeddings) as address:
        pass
    return int(address.rpartition(":")[2])


async def test_bm25_answers_meanwhile(tmp_path: Path, port: int) -> None:
    observed = Observed()
    contract = EmbeddingContract(model="m", dimension=HashingEmbedder.contract.dimension)
    embedder: Any = HttpEmbedder(contract, EmbeddingSettings(url=f"http://127.0.0.1:{port}/v1"))
    async with opened(tmp_path, embedder) as collections:
        retriever = HybridRetriever(collections, embedder, SETTINGS, observed)

        async def ask(query: str) -> tuple[str, tuple[str, ...]]:
            result = await retriever.search(SearchRequest(query, 1, "c"))
            return result.passages[0].passage.passage_id, result.missing

        async with stub_server(embeddings, port):
            await collections.create("c")
            await ingest_documents(CORPUS, "c", collections)
            assert await ask("Which volcano is near Catania?") == ("etna", ())
        for number in range(4):
            assert await ask(f"A volcano near Catania {number}") == ("etna", ("dense",))
        assert ("embedding", "open") in observed.states
        assert await ask("Which volcano is near Catania?") == ("etna", ())  # it is remembered
        async with stub_server(embeddings, port):
            for number in range(500):
                if await ask(f"The volcano near Catania {number}") == ("etna", ()):
                    break
                await anyio.sleep(0.02)
            assert observed.states[-1] == ("embedding", "closed")
            await embedder.aclose()
