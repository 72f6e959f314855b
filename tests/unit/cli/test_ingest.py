from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from service.api import documents
from service.api.app import create_app
from service.cli import ingest as command
from service.cli.options import IngestOptions
from service.cli.serve import serving
from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    InvalidRequest,
    RetrievalFailure,
    StoreBusy,
)
from service.core.locks import acquire
from service.core.settings import RetrievalSettings, ServerSettings, Settings
from service.retrieval.documents import BadDocument, Document, parse_document
from service.retrieval.embedding.contract import Vector
from service.retrieval.embedding.embedders import HashingEmbedder
from service.retrieval.factory import open_retrieval
from tests.api.test_tenants import entry, tenants
from tests.unit.retrieval.worlds import CORPUS


def settings(tmp_path: Path, **server: Any) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        retrieval=RetrievalSettings(embedding_model="hashing"),
        server=ServerSettings(**server),
    )


async def run_ingest(files: Sequence[Path], collection: str, own: Settings, **options: Any) -> int:
    return await command.run_ingest(files, IngestOptions(collection=collection, **options), own)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps(document) for document in CORPUS]
    path.write_text("\n".join([*lines[:2], "{[bold]", *lines[2:], '{"id": "x#1", "text": "t"}']))
    return path


async def test_in_this_process(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run_ingest([file], "c", settings(tmp_path)) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "corpus.jsonl:3: not JSON:" in printed
    assert "id must not end in #" in printed
    assert "5 documents indexed, 0 unchanged, 2 failed; 5 passages embedded" in printed
    assert "━" not in printed

    good = tmp_path / "good.txt"
    good.write_text("Some text.")
    assert await run_ingest([good], "c", settings(tmp_path)) == 0
    async with open_retrieval(settings(tmp_path)) as stores:
        assert (await stores.collections.manifest("c")).documents == 6


async def test_through_the_server_that_owns_the_directory(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(value: object) -> Document:
        """Refuse there what was fine here."""
        document = parse_document(value)
        if document.id == "norma":
            raise BadDocument("it is refused")
        return document

    monkeypatch.setattr(documents, "parse_document", parsed)
    all_rights = ["ask", "write", "administer"]
    own = tenants(tmp_path, entry("k3y", rights=all_rights), entry("reads-only"))
    keys = {key: settings(tmp_path).model_copy(update={"key": SecretStr(key)})
            for key in ("k3y", "unknown", "reads-only")}  # fmt: skip
    app = create_app(own)
    async with serving(app) as (_, url):  # the command may block its own event loop
        stores = app.state.runtime.retrieval
        stores.directory.set_url(url)
        assert await run_ingest([file], "c", keys["k3y"]) == 1
        printed = " ".join(capsys.readouterr().out.split())
        assert f"Using the server at {url}." in printed
        assert "corpus.jsonl:1: it is refused" in printed
        assert "corpus.jsonl:3: not JSON:" in printed
        assert "4 documents indexed, 0 unchanged, 3 failed" in printed
        assert (await stores.collections.manifest("c")).documents == 4
        with pytest.raises(ConfigurationError, match="server's keys; give one of that"):
            await run_ingest([file], "c", keys["unknown"])
        with pytest.raises(ConfigurationError, match=r"right 'write'.*; use a key that may do"):
            await run_ingest([file], "c", keys["reads-only"])


async def test_folders_formats_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "beir"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "b", "title": "", "text": "Some text."}')
    table = SimpleNamespace(buffer=io.BytesIO(b"id\ttext\ttitle\n1\tMore text.\tT\n"))
    monkeypatch.setattr(sys, "stdin", table)
    files = [folder, Path("-")]
    assert await run_ingest(files, "c", settings(tmp_path)) == 0
    assert "2 documents indexed" in " ".join(capsys.readouterr().out.split())
    assert await run_ingest([folder], "c", settings(tmp_path), format="text") == 0
    async with open_retrieval(settings(tmp_path)) as stores:
        manifest = await stores.collections.manifest("c")
    assert (manifest.documents, manifest.metadata_fields) == (3, ())


async def test_ray_is_refused_beside_a_server_and_without_its_extra(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings(tmp_path)
    with pytest.raises(ConfigurationError, match="--ray writes to the data directory directly"):
        await run_ingest([file], "c", own, url="http://127.0.0.1:9", ray="local")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "service.retrieval.embedding.on_ray", raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install '.\[ray\]'"):
        await run_ingest([file], "c", own, ray="local")


async def test_what_stops_everything(tmp_path: Path, file: Path) -> None:
    own = settings(tmp_path)
    with pytest.raises(InvalidRequest, match="is not valid: use"):
        await run_ingest([file], "No Name", own)
    with pytest.raises(InvalidRequest, match="gone does not exist"):
        await run_ingest([file, tmp_path / "gone"], "c", own)
    with pytest.raises(InvalidRequest, match="known: jsonl, parquet, dpr, text"):
        await run_ingest([file], "c", own, format="ods")
    with pytest.raises(EngineFailure, match="run the same command again"):
        await run_ingest([file], "c", own, url="http://127.0.0.1:9")
    with acquire(own.data_dir), pytest.raises(StoreBusy, match=str(os.getpid())):
        await run_ingest([file], "c", own)


async def test_a_failed_replacement_says_that_it_starts_from_nothing(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings(tmp_path)
    assert await run_ingest([file], "c", own) == 1  # two lines of it are bad

    async def broken(self: HashingEmbedder, texts: Sequence[str]) -> list[Vector]:
        raise RetrievalFailure("the embedder broke")

    told = r"the collection is unchanged; .* --replace starts from the beginning"
    monkeypatch.setattr(HashingEmbedder, "embed_passages", broken)
    with pytest.raises(RetrievalFailure) as caught:
        await run_ingest([file], "c", own, replace=True)
    assert re.search(f"the embedder broke; {told}", caught.value.detail)
    with pytest.raises(EngineFailure, match=told):
        await run_ingest([file], "c", own, replace=True, url="http://127.0.0.1:9")


async def test_files_without_a_valid_document_leave_no_collection(tmp_path: Path) -> None:
    own = settings(tmp_path, port=0)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.jsonl").write_text("no JSON")
    bad = [tmp_path / "empty.txt", tmp_path / "bad.jsonl"]
    assert await run_ingest(bad, "default", own) == 1
    with pytest.raises(InvalidRequest):
        await run_ingest(bad, "default", own, replace=True)
    app = create_app(own)
    async with serving(app) as (_, url):
        stores = app.state.runtime.retrieval
        assert "default" not in await stores.collections.names()
        assert await run_ingest(bad, "default", own, url=url) == 1
        assert "default" not in await stores.collections.names()
        await stores.collections.create("kept")
    assert await run_ingest(bad, "kept", own) == 1
    async with open_retrieval(own) as stores:
        assert "kept" in await stores.collections.names()


async def test_an_embedding_model_that_cannot_run_is_told_before_anything_is_made(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashingEmbedder, "problem", lambda _: "it needs numpy")
    with pytest.raises(ConfigurationError, match="it needs numpy"):
        await run_ingest([file], "c", settings(tmp_path))
    assert not (tmp_path / "data" / "collections" / "c").exists()
