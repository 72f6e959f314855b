"""kill -9 during an ingest: the next run does what was missing, and both stores agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.retrieval.embedding import BATCH, HashingEmbedder
from tests.faults.killing import (
    NotingEmbedder,
    State,
    documents,
    noted,
    run,
    run_and_kill,
    state,
)

pytestmark = pytest.mark.anyio

COUNT = 300  # documents; more than one commit


@pytest.fixture
async def undisturbed(tmp_path: Path) -> State:
    file = documents(tmp_path / "corpus.jsonl", COUNT)
    await run(tmp_path / "undisturbed", file, HashingEmbedder())
    return await state(tmp_path / "undisturbed")


# Operations of this ingest: 1 and 2 manifests, 3 to 18 upserts, 19 delete, 20 flush, 21 commit,
# then the second batch, 28 the manifest. Even ones die before it, odd ones after it.
@pytest.mark.parametrize("operation", [2, 3, 10, 20, 21, 28])
async def test_killed_at_a_durable_operation(
    tmp_path: Path, undisturbed: State, operation: int
) -> None:
    file, data = tmp_path / "corpus.jsonl", tmp_path / "killed"
    assert run_and_kill(data, file, tmp_path / "first", operation=operation)
    before = await state(data)
    missing = len(undisturbed.dense) - len(before.dense)

    report = await run(data, file, NotingEmbedder(tmp_path / "second"))

    assert noted(tmp_path / "second") == report.embedded <= missing
    assert noted(tmp_path / "first") + report.embedded <= len(undisturbed.dense) + BATCH
    after = await state(data)
    assert after.bm25 == after.dense == undisturbed.bm25
    assert after.manifest.model_dump() == undisturbed.manifest.model_dump()


async def test_killed_while_documents_are_replaced(tmp_path: Path, undisturbed: State) -> None:
    """Old and new passages are mixed at the kill; another file's ingest repairs that too."""
    data = tmp_path / "killed"
    await run(data, documents(tmp_path / "old.jsonl", COUNT, words=90), HashingEmbedder())
    file = tmp_path / "corpus.jsonl"
    assert run_and_kill(data, file, tmp_path / "first", operation=6)
    broken = await state(data)
    assert broken.bm25 != broken.dense
    assert broken.manifest.state == "building"

    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "other", "text": "Another document."}\n')
    await run(data, other, HashingEmbedder())
    repaired = await state(data)
    assert repaired.bm25 == repaired.dense
    assert repaired.bm25.keys() == {*broken.bm25, "other"}
    assert repaired.manifest.state == "complete"
    assert repaired.manifest.documents == COUNT + 1

    report = await run(data, file, HashingEmbedder())
    after = await state(data)
    assert after.bm25 == after.dense
    assert after.bm25.items() >= undisturbed.bm25.items()
    assert report.failed == 0
