"""`ingest --watch`: a folder and a collection that follows it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from service.cli import ingest as module
from service.core.concurrency import running
from service.core.errors import InvalidRequest, StoreError
from service.core.settings import Settings
from service.retrieval.base import EVERYTHING
from service.retrieval.factory import open_embedded
from tests.support.live import config

pytestmark = pytest.mark.anyio


async def becomes(wanted: set[str], settings: Settings) -> None:
    """Wait until the collection has these documents. The command takes the data directory now and
    then."""
    found: set[str] = set()
    for _ in range(200):
        await asyncio.sleep(0.05)
        with suppress(StoreError):
            async with open_embedded(settings) as stores:
                if "docs" in await stores.collections.names():
                    heads = await stores.collections.heads("docs", "", 99, EVERYTHING)
                    found = {each.document_id for each in heads}
        if found == wanted:
            return
    raise AssertionError(f"{found} are there, not {wanted}")


async def test_the_collection_follows_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.3)
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# A\nFirst.")
    (folder / "deep" / "b.txt").write_text("Second.")
    settings = config(data_dir=tmp_path / "data", retrieval={"embedding_model": "hashing"})
    run = partial(module.run_ingest, collection="docs", settings=settings)
    async with running(module.watch([folder], run)):
        await becomes({"a.md", "deep/b.txt"}, settings)
        (folder / "a.md").write_text("# A\nAnother one.\n# B\n" + "More words. " * 300)
        await becomes({"a.md#a", "a.md#b", "deep/b.txt"}, settings)
        (folder / "deep" / "b.txt").unlink()
        (folder / "new.txt").write_text("Third.")
        await becomes({"a.md#a", "a.md#b", "new.txt"}, settings)
        folder.rename(tmp_path / "away")  # as a disk that is not there
        await asyncio.sleep(1)
        await becomes({"a.md#a", "a.md#b", "new.txt"}, settings)


async def test_only_folders_are_followed(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--watch follows folders"):
        await module.watch([tmp_path / "none"], partial(module.run_ingest, collection="x"))  # type: ignore[arg-type]
