from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.core.errors import ConfigurationError, NotFound
from service.retrieval.base import SearchRequest
from service.retrieval.collections.sample import CORPUS as CORPUS_FILE
from service.retrieval.collections.sample import SAMPLE, VECTORS, Sample
from service.retrieval.embedding.contract import HASHING, MINILM, Vector
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.unit.retrieval.worlds import CORPUS, SETTINGS, opened


class LikeMiniLM(HashingEmbedder):
    """Stands in for MiniLM where only its name matters; counts."""

    contract = MINILM

    def __init__(self) -> None:
        self.passages = 0

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.passages += len(texts)
        return await super().embed_passages(texts)


class Absent(LikeMiniLM):
    """A base install: no torch."""

    def problem(self) -> str | None:
        return "no torch"

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        raise ConfigurationError("no torch")

    embed_passages = embed_queries


@pytest.fixture
async def sample(tmp_path: Path) -> Sample:
    folder = tmp_path / "shipped"
    folder.mkdir()
    lines = [json.dumps({**document, "source": "test"}) for document in CORPUS]
    (folder / CORPUS_FILE).write_text("\n".join(lines) + "\n")
    made = Sample(folder)
    texts = [f"{document['title']}. {document['text']}" for document in CORPUS]
    rows = [struct.pack("<384e", *row) for row in await LikeMiniLM().embed_passages(texts)]
    (folder / VECTORS).write_bytes(bytes.fromhex(made.source()) + b"".join(rows))
    return made


async def test_made_at_first_use_from_the_shipped_vectors(tmp_path: Path, sample: Sample) -> None:
    embedder = LikeMiniLM()
    async with opened(tmp_path / "data", embedder, sample) as collections:
        assert await collections.names() == [SAMPLE]
        assert await collections.resolve(None) == SAMPLE
        retriever = HybridRetriever(collections, embedder, SETTINGS)
        result = await retriever.search(SearchRequest("volcano near Catania", 2, SAMPLE, "dense"))
        assert result.passages[0].passage.passage_id == "etna"
        manifest = await collections.manifest(SAMPLE)
        assert (manifest.documents, manifest.state, embedder.passages) == (5, "complete", 0)
    inode = (tmp_path / "data/collections/sample/manifest.json").stat().st_ino
    async with opened(tmp_path / "data", embedder, sample) as collections:
        assert (await collections.manifest(SAMPLE)) == manifest
    assert (tmp_path / "data/collections/sample/manifest.json").stat().st_ino == inode


async def test_without_torch_bm25_answers_from_the_sample(tmp_path: Path, sample: Sample) -> None:
    async with opened(tmp_path / "data", Absent(), sample) as collections:
        retriever = HybridRetriever(collections, Absent(), SETTINGS)
        await retriever.warm()
        result = await retriever.search(SearchRequest("volcano", 2, SAMPLE))
        assert result.passages[0].passage.passage_id == "etna"
        assert result.missing == ("dense",)


async def test_another_corpus_or_model_makes_it_anew(tmp_path: Path, sample: Sample) -> None:
    embedder = LikeMiniLM()
    async with opened(tmp_path / "data", embedder, sample) as collections:
        await collections.get(SAMPLE)
    with (sample.folder / CORPUS_FILE).open("a") as file:
        file.write('{"id": "new", "title": "New", "text": "New text."}\n')
    async with opened(tmp_path / "data", embedder, sample) as collections:
        await collections.get(SAMPLE)
        assert (await collections.manifest(SAMPLE)).documents == 6
        assert embedder.passages == 6  # the shipped vectors belong to the old corpus
    async with opened(tmp_path / "data", HashingEmbedder(), sample) as collections:
        await collections.get(SAMPLE)
        assert (await collections.manifest(SAMPLE)).embedding == HASHING


async def test_a_half_made_sample_is_made_again(tmp_path: Path, sample: Sample) -> None:
    async with opened(tmp_path / "data", LikeMiniLM(), sample) as collections:
        await collections.get(SAMPLE)
    path = tmp_path / "data/collections/sample/manifest.json"
    path.write_text(path.read_text().replace('"complete"', '"building"'))
    async with opened(tmp_path / "data", LikeMiniLM(), sample) as collections:
        await collections.get(SAMPLE)
        assert (await collections.manifest(SAMPLE)).state == "complete"


async def test_a_sample_that_cannot_be_made_is_not_there_half(
    tmp_path: Path, sample: Sample
) -> None:
    (sample.folder / VECTORS).unlink()
    async with opened(tmp_path / "data", Absent(), sample) as collections:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="no torch"):
                await collections.get(SAMPLE)
    async with opened(tmp_path / "data", LikeMiniLM(), sample) as collections:
        await collections.get(SAMPLE)
        assert (await collections.manifest(SAMPLE)).documents == 5


async def test_no_sample_is_no_collection(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as collections:
        with pytest.raises(NotFound):
            await collections.get(SAMPLE)


def test_the_shipped_vectors_belong_to_the_shipped_corpus() -> None:
    shipped = Sample.shipped()
    assert shipped.exists
    stored = (shipped.folder / VECTORS).read_bytes()
    assert stored[:32].hex() == shipped.source()
    assert shipped.vectors(list(shipped.documents()))
