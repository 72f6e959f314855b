"""What a manifest says of generations, and how it is kept in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import StoreError
from service.retrieval.collections.manifest import (
    FILE,
    FileManifests,
    Manifest,
    parse_manifest,
)
from service.retrieval.embedding.contract import HASHING

MANIFEST = Manifest(name="c", embedding=HASHING)


@pytest.mark.anyio
async def test_a_file_is_written_read_listed_and_forgotten(tmp_path: Path) -> None:
    store = FileManifests(tmp_path)
    assert await store.names() == set()
    assert await store.read("c") is None
    await store.write(MANIFEST)
    changed = MANIFEST.model_copy(update={"documents": 3})
    await store.write(changed)
    assert await store.names() == {"c"}
    assert await store.read("c") == changed
    async with store.claim("c"):
        assert not await store.claimed("c")
    await store.forget("c")
    await store.forget("c")
    assert not (tmp_path / "c").exists()


@pytest.mark.anyio
async def test_a_draft_that_a_kill_left_is_no_manifest(tmp_path: Path) -> None:
    store = FileManifests(tmp_path)
    await store.write(MANIFEST)
    (tmp_path / "c" / f".{FILE}.part").write_text("{")
    assert await store.read("c") == MANIFEST


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"schema_version": 2, "name": "c"}'])
def test_damaged_or_of_another_version(content: bytes) -> None:
    with pytest.raises(StoreError, match=r"^there: .*delete the collection and ingest it again"):
        parse_manifest(content, "there")
