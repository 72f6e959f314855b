"""A re-index under questions: none fails, none sees two generations, on every pair of stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from service.core.errors import InvalidRequest, RevelatorError
from service.retrieval.base import SearchRequest
from service.retrieval.collections import lifecycle
from service.retrieval.collections.backends import Backends
from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import parse_document
from service.retrieval.search.hybrid import HybridRetriever, SnapshotRetriever
from tests.contracts.stores import QUIET, WORLDS
from tests.support.documents import ingest_documents
from tests.unit.retrieval.worlds import SETTINGS, CountingEmbedder, contents

pytestmark = QUIET

NAME = "reindexed"
COUNT = 40


def documents(generation: str) -> list[dict[str, Any]]:
    """Same ids and words in each generation; the text says which one it is."""
    return [
        {"id": f"d{n}", "title": f"T{n}", "text": f"Volcano {n} of {generation}"}
        for n in range(COUNT)
    ]


class World:
    def __init__(self, data: Path, backends: Backends) -> None:
        self.backends = backends
        self.embedder = CountingEmbedder()
        self.collections = Collections(data, self.embedder, Sample(data / "no-sample"), backends)
        self.retriever = HybridRetriever(self.collections, self.embedder, SETTINGS)

    async def generation_seen(self, retriever: Any = None) -> str:
        """The one that all passages of a search are of."""
        found = await (retriever or self.retriever).search(SearchRequest("volcano", 10, NAME))
        assert len(found.passages) == 10
        (seen,) = {hit.passage.text.rpartition(" ")[2] for hit in found.passages}
        assert set(found.missing) <= {"index-incomplete"}
        return str(seen)

    async def replace(self, generation: str) -> None:
        async with self.collections.replacing(NAME) as writer:
            await writer.write([parse_document(each) for each in documents(generation)])


@pytest.fixture(params=WORLDS)
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(lifecycle, "RETIRE_S", 0.0)
    backends = WORLDS[request.param](request)
    await backends.drop(NAME)
    made = World(tmp_path, backends)
    await made.collections.create(NAME)
    await ingest_documents(documents("one"), NAME, made.collections)
    yield made
    await made.collections.aclose()
    await backends.drop(NAME)
    await backends.aclose()


@asynccontextmanager
async def asked_all_along(ask: Callable[[], Awaitable[Any]]) -> AsyncIterator[list[Any]]:
    """`ask` again and again, by two, until the block ends; what it returned."""
    answers: list[Any] = []

    async def go_on() -> None:
        while True:
            answers.append(await ask())

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(go_on)
        yield answers
        group.cancel_scope.cancel()


async def test_questions_before_during_and_after(world: World) -> None:
    """A question of three searches never mixes; each search sees one generation whole."""

    async def question() -> tuple[str, ...]:
        async with SnapshotRetriever(world.retriever) as held:
            seen = [await world.generation_seen(held) for _ in range(3)]
        assert len(set(seen)) == 1, seen
        return tuple(seen)

    async with asked_all_along(question) as answers:
        await world.replace("two")
        with anyio.fail_after(20):
            while answers[-1][0] != "two":
                await anyio.lowlevel.checkpoint()
    assert {seen[0] for seen in answers} == {"one", "two"}
    order = [seen[0] for seen in answers]
    assert await world.generation_seen() == "two"
    assert order.index("two") > 0

    collection = await world.collections.get(NAME)
    assert (collection.manifest.generation, collection.manifest.leftovers) == (2, {})
    assert (collection.manifest.documents, collection.manifest.state) == (COUNT, "complete")
    bm25, dense = await contents(collection)
    assert bm25 == dense
    assert len(bm25) == COUNT
    assert (await world.collections.check(NAME)).findings == []


async def test_a_running_question_finishes_on_the_old_one(world: World) -> None:
    done = anyio.Event()
    async with (
        anyio.create_task_group() as group,
        SnapshotRetriever(world.retriever) as held,
    ):
        assert await world.generation_seen(held) == "one"

        async def replace() -> None:
            await world.replace("two")
            done.set()

        group.start_soon(replace)
        with anyio.fail_after(20):
            while await world.generation_seen() != "two":
                await anyio.lowlevel.checkpoint()
        assert await world.generation_seen(held) == "one"
        assert not done.is_set()
        await held.__aexit__(None, None, None)
        with anyio.fail_after(20):
            await done.wait()
    assert await world.generation_seen() == "two"


async def test_what_fails_leaves_the_old_one(world: World) -> None:
    before = await world.collections.manifest(NAME)
    world.embedder.fail_after = world.embedder.passages + 10
    with pytest.raises(RevelatorError, match="the embedder broke"):
        await world.replace("two")
    world.embedder.fail_after = None
    with pytest.raises(InvalidRequest, match="no valid document was received"):
        async with world.collections.replacing(NAME):
            pass
    with anyio.move_on_after(0.0):
        await world.replace("two")
    assert await world.generation_seen() == "one"
    assert await world.collections.manifest(NAME) == before
    await world.replace("two")
    assert await world.generation_seen() == "two"


async def test_deletes_and_changes_under_questions(world: World) -> None:
    """Seen by the next question; a running one is never broken."""

    async def search() -> int:
        found = await world.retriever.search(SearchRequest("volcano", COUNT, NAME))
        assert set(found.missing) <= {"index-incomplete"}
        return len(found.passages)

    async with asked_all_along(search) as answers:
        for n in range(5):
            await world.collections.delete_document(NAME, f"d{n}")
            found = await world.retriever.search(SearchRequest("volcano", COUNT, NAME))
            assert f"d{n}" not in {hit.passage.passage_id for hit in found.passages}
            changed = {"id": f"d{n + 10}", "text": f"Geyser {n} instead."}
            await ingest_documents([changed], NAME, world.collections)
            found = await world.retriever.search(SearchRequest(f"geyser {n}", 1, NAME))
            assert found.passages[0].passage.text == f"Geyser {n} instead."
    assert answers
    assert min(answers) >= COUNT - 10
