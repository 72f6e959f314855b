"""kill -9 during a re-index or a repair: the old or the new serves whole, nothing is left over."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from service.retrieval.collections.catalog import Collections
from service.retrieval.collections.sample import Sample
from service.retrieval.documents import Document, passages_of
from service.retrieval.embedding import BATCH, HashingEmbedder
from tests.faults.killing import (
    NAME,
    NotingEmbedder,
    State,
    documents,
    noted,
    repair,
    run,
    run_and_kill,
    state,
)

pytestmark = pytest.mark.anyio

COUNT = 60  # documents


def folders(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "collections" / NAME).iterdir() if path.is_dir())


def holds(found: State, expected: State) -> bool:
    assert found.bm25 == found.dense
    assert found.manifest.state == "complete"
    assert found.manifest.passages == len(found.bm25)
    return found.bm25 == expected.bm25 and (
        found.manifest.content_hash == expected.manifest.content_hash
    )


async def made(folder: Path, file: Path) -> State:
    await run(folder, file, HashingEmbedder())
    return await state(folder)


# Operations of a re-index: 1 the manifest that notes it, 2 to 8 upserts, delete, flush and commit,
# 9 the manifest that switches, 10 the removal of the old folder, 11 the last manifest. Of a repair:
# 1 the manifest, upserts, a delete of what is surplus, a flush, the manifest. Even ones die before
# it, odd ones after it.
@pytest.mark.parametrize("operation", [1, 4, 8, 9, 10])
async def test_a_reindex_killed_at_a_durable_operation(tmp_path: Path, operation: int) -> None:
    """Before the switch all is old, after it all is new, and half-built generations go."""
    old, new = documents(tmp_path / "old", COUNT, words=90), documents(tmp_path / "new", COUNT)
    data = tmp_path / "killed"
    before, after = await made(data, old), await made(tmp_path / "b", new)
    assert run_and_kill(data, new, tmp_path / "log", operation=operation, work="replace")
    found = await state(data)
    assert holds(found, after if operation >= 9 else before)
    assert folders(data) == [str(found.manifest.generation)]
    assert (await state(data)).manifest.leftovers == {}
    await run(data, new, HashingEmbedder(), replace=True)
    assert holds(await state(data), after)


async def spoil(data: Path) -> None:
    collections = Collections(data, HashingEmbedder(), Sample(data / "no-sample"))
    try:
        collection = await collections.get(NAME)
        stray = passages_of(Document("stray", "", "Nobody's vector."))
        vectors = await HashingEmbedder().embed_passages(["Nobody's vector."])
        lost = sorted(collection.dense.hashes([f"d{n}" for n in range(COUNT)]))

        def work() -> None:
            collection.dense.delete(lost)
            collection.dense.upsert(stray, vectors)

        await anyio.to_thread.run_sync(work)
    finally:
        await collections.aclose()


@pytest.mark.parametrize("operation", [1, 2, 3, 4])
async def test_a_repair_killed_at_a_durable_operation(tmp_path: Path, operation: int) -> None:
    data, file = tmp_path / "data", documents(tmp_path / "file", COUNT)
    whole = await made(data, file)
    await spoil(data)
    broken = await state(data)
    lacking = len(whole.dense.keys() - broken.dense.keys())
    assert lacking > 0
    first, second = tmp_path / "first", tmp_path / "second"
    assert run_and_kill(data, file, first, operation=operation, work="repair")
    report = await repair(data, NotingEmbedder(second))
    assert report.left == []
    assert holds(await state(data), whole)
    assert noted(first) + noted(second) <= lacking + BATCH
    assert (await repair(data, HashingEmbedder())).findings == []
