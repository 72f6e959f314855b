"""`ingest --watch`: a folder and a collection that follows it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest

from service.cli import ingest as module
from service.cli.options import IngestOptions
from service.core.concurrency import running
from service.core.errors import InvalidRequest, StoreError
from service.core.settings import Settings
from service.retrieval.base import EVERYTHING
from service.retrieval.factory import open_retrieval
from service.retrieval.ingest.sources import Source
from tests.support.live import config


async def becomes(
    wanted: set[str], settings: Settings, turn: AbstractAsyncContextManager[object] | None = None
) -> None:
    """Wait until the collection has these documents. The data directory is the command's in
    between: in turns, or for long enough that it gets it."""
    found: set[str] = set()
    for _ in range(200):
        await asyncio.sleep(0.05 if turn else 0.3)
        async with turn or nullcontext():
            with suppress(StoreError):
                async with open_retrieval(settings) as stores:
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
    settings = config(
        data_dir=tmp_path / "data", retrieval={"embedding_model": "hashing"},
        ingest={"keep_files": True},
    )  # fmt: skip

    turn = asyncio.Lock()  # the data directory has one owner

    async def original(document_id: str) -> str:
        async with turn, open_retrieval(settings) as stores:
            found = await stores.collections.original("docs", document_id, EVERYTHING)
            assert found is not None
            return found[1].read_text()

    async def run(files: Sequence[Source]) -> int:
        async with turn:
            return await module.run_ingest(files, IngestOptions(collection="docs"), settings)

    async with running(module.watch([folder], run)):
        await becomes({"a.md", "deep/b.txt"}, settings, turn)
        (folder / "a.md").write_text("# A\nAnother one.\n# B\n" + "More words. " * 300)
        await becomes({"a.md#a", "a.md#b", "deep/b.txt"}, settings, turn)
        (folder / "deep" / "b.txt").unlink()
        (folder / "new.txt").write_text("Third.")
        await becomes({"a.md#a", "a.md#b", "new.txt"}, settings, turn)
        assert (await original("a.md#b")).startswith("# A\nAnother one.")
        assert await original("new.txt") == "Third."
        assert len([*settings.data_dir.glob("collections/docs/files/*")]) == 2
        folder.rename(tmp_path / "away")  # as a disk that is not there
        await asyncio.sleep(1)
        await becomes({"a.md#a", "a.md#b", "new.txt"}, settings, turn)


async def test_the_command_follows_until_it_is_told_to_end(tmp_path: Path) -> None:
    folder, data = tmp_path / "docs", tmp_path / "data"
    folder.mkdir()
    (folder / "a.md").write_text("# A\nFirst.")
    (folder / "b.csv").write_text("Model,Price\nHP-20,12")
    file = tmp_path / "revelator.toml"
    file.write_text(f'data_dir = "{data}"\n[retrieval]\nembedding_model = "hashing"\n')
    settings = config(data_dir=data, retrieval={"embedding_model": "hashing"})
    command = [sys.executable, "-m", "service", "ingest", "--watch", str(folder)]
    options = ["--collection", "docs", "--config", str(file)]
    with subprocess.Popen(  # noqa: ASYNC220
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            # Until it has told of the first files, it may have the data directory.
            assert process.stdout is not None
            first = await asyncio.to_thread(process.stdout.readline)
            await becomes({"a.md", "b.csv#row=2-2"}, settings)
            (folder / "c.txt").write_text("Third.")
            (folder / "a.md").write_text("# A\nFirst.\n# B\nMore.")
            (folder / "b.csv").unlink()
            await becomes({"a.md#a", "a.md#b", "c.txt"}, settings)
            process.terminate()
            _, told = await asyncio.to_thread(process.communicate, timeout=30)
        finally:
            process.kill()
    assert process.returncode == 143
    assert told.endswith("Interrupted. Run the same command again to continue.\n")
    assert first.startswith("collection docs: 2 documents indexed, 0 unchanged, 0 failed")
    await becomes({"a.md#a", "a.md#b", "c.txt"}, settings)


async def never(_: object) -> int:
    raise AssertionError


async def test_only_folders_are_followed(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--watch follows folders"):
        await module.watch(
            [tmp_path / "none"], partial(module.run_ingest, options=IngestOptions(collection="x"))
        )  # type: ignore[arg-type]
