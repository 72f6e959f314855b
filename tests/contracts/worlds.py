"""A retriever over a small corpus, on a pair of stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.retrieval.base import Retriever
from service.retrieval.collections.backends import Backends
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.search.hybrid import HybridRetriever
from tests.contracts.stores import WORLDS
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import SETTINGS, opened


@asynccontextmanager
async def world(
    folder: Path, backends: Backends, corpora: Mapping[str, Sequence[Any]]
) -> AsyncIterator[Retriever]:
    """Collections by name with their documents, which are gone at the end."""
    try:
        async with opened(folder, backends=backends) as collections:
            for name, documents in corpora.items():
                await backends.drop(name)
                await collections.create(name)
                await ingest_documents(documents, name, collections)
            yield HybridRetriever(collections, HashingEmbedder(), SETTINGS)
            for name in corpora:
                await collections.delete(name)
    finally:
        await backends.aclose()


def reading(
    corpora: Mapping[str, Sequence[Any]], pairs: Collection[str] = tuple(WORLDS)
) -> Callable[..., AsyncIterator[Retriever]]:
    """A fixture: a retriever over these corpora on each pair of stores, opened once, because the
    tests of a module only read."""

    @pytest.fixture(scope="module", params=pairs)
    async def retriever(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Retriever]:
        backends = WORLDS[request.param](request)
        async with world(tmp_path_factory.mktemp("data"), backends, corpora) as made:
            yield made

    return retriever
