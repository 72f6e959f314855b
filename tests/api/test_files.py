"""Files over HTTP: each result is named, and a request that breaks off changes nothing."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from service.api import files as files_module
from service.api import wire as bodies
from service.core import files
from service.core.errors import NotFound, StoreError, UnknownCollection
from service.retrieval.documents import PassageRecord
from service.retrieval.stores.tantivy_store import TantivyStore
from tests.api.test_bad_input import check_problem
from tests.api.test_collections import put
from tests.conftest import need
from tests.support.live import Live, config, live
from tests.support.office import pdf, scan

URL = "/collections/mine/files"
RULES = pdf(["One.", "Two."])


def form(*files: tuple[str, bytes | str]) -> aiohttp.FormData:
    data = aiohttp.FormData(quote_fields=False)
    for name, content in files:
        raw = content.encode() if isinstance(content, str) else content
        data.add_field("files", raw, filename=name)
    return data


async def send(service: Live, *files: tuple[str, bytes | str]) -> list[dict[str, Any]]:
    response = await service.post(URL, data=form(*files))
    assert response.status == 200, response.text
    found: list[dict[str, Any]] = response.json()["files"]
    return found


async def test_each_file_is_read_and_its_result_named(mine: Live) -> None:
    need("pypdf", "pdfplumber")
    found = await send(
        mine, ("rules.pdf", pdf(["One.", "Two."])),
        ("preise für 2025.csv", "Model,Price\nHP,12"),
        ("../docs/a.md", "# A\nText."), ("empty.txt", b""), ("x.zip", b"PK\x03\x04..."),
        ("b/a.md", "Another."), ("..", b"x"),
    )  # fmt: skip
    assert [(each["file"], each["indexed"], each["failed"]) for each in found] == [
        ("rules.pdf", 2, 0), ("preise für 2025.csv", 1, 0), ("a.md", 1, 0), ("empty.txt", 0, 1),
        ("x.zip", 0, 1), ("a.md", 0, 1), ("..", 0, 1),
    ]  # fmt: skip
    assert found[3]["problems"] == ["the file is empty"]
    assert "unknown file type '.zip'" in found[4]["problems"][0]
    assert found[5]["problems"] == ["another file of this request has the same name"]
    at = "/collections/mine/documents/rules.pdf%23page=2"
    assert (await mine.get(at)).json()["passages"][0]["text"] == "Two."
    (again,) = await send(mine, ("rules.pdf", pdf(["One."])))
    assert (again["indexed"], again["unchanged"], again["removed"]) == (0, 1, 1)
    assert (await mine.get("/collections/mine")).json()["state"] == "complete"


async def test_refusals(mine: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MOST_BYTES", 10_000)
    large = form(("a.txt", b"x" * 20_000))
    check_problem(await mine.post(URL, data=large), 413, "body-too-large")
    check_problem(
        await mine.post("/collections/gone/files", data=form(("a", b"x"))), 404, "not-found"
    )
    check_problem(await mine.post(URL, json={}), 415, "unsupported-media-type")
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    field = b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n--b--\r\n'
    for body in (b"", b"--b\r\nno header", b"--b--\r\n", field):
        response = await mine.post(URL, data=body, headers=kind)
        check_problem(response, 400, "malformed-request")
    assert "of files with names" in response.json()["detail"]
    misspelt = await mine.post(f"{URL}?acess=board", data=form(("a.txt", b"x")))
    check_problem(misspelt, 422, "invalid-request")
    assert misspelt.json()["detail"].startswith("acess: there is no such parameter")
    bare = {"Content-Type": "multipart/form-data"}
    check_problem(await mine.post(URL, data=b"x", headers=bare), 400, "malformed-request")


async def test_files_leave_the_room_on_the_disk_that_vectors_need(
    mine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [files.ROOM] * 2

    def look(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=seen.pop() if seen else files.ROOM - 1, f_frsize=1)

    monkeypatch.setattr(files.os, "statvfs", look)
    large = aiohttp.FormData()
    large.add_field("files", io.BytesIO(b"x" * 5_000_000), filename="a.txt")
    response = await mine.post(URL, data=large)
    problem = check_problem(response, 500, "store")
    assert "are needed to receive files" in problem["detail"]


async def test_an_upload_that_breaks_off_changes_nothing(
    mine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.5)
    begun = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.txt"\r\n\r\nSome text.'

    async def stalled() -> Any:
        yield begun
        await asyncio.sleep(30)

    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    check_problem(await mine.post(URL, data=stalled(), headers=kind), 408, "request-timeout")
    found = (await mine.get("/collections/mine")).json()
    assert (found["documents"], found["state"]) == (0, "complete")


async def test_a_file_that_is_too_large_is_named(
    mine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "LARGEST", 100)
    found = await send(mine, ("a.txt", b"x" * 101), ("b.txt", "Text."))
    assert [each["indexed"] for each in found] == [0, 1]
    assert "larger than 50,000,000 bytes" in found[0]["problems"][0]


@pytest.mark.parametrize("failure", [StoreError("it broke"), UnknownCollection("mine", ["x"])])
async def test_what_was_indexed_before_a_store_failed_is_told(
    mine: Live, monkeypatch: pytest.MonkeyPatch, failure: StoreError | NotFound
) -> None:
    """Unless the collection was deleted meanwhile."""
    replace = TantivyStore.replace

    async def failing(
        store: TantivyStore, old: Sequence[str], new: Sequence[PassageRecord]
    ) -> None:
        if any(record.document_id == "b.txt" for record in new):
            raise failure
        await replace(store, old, new)

    sent = [("x.zip", "x"), ("a.txt", "One."), ("b.txt", "Two."), ("c.txt", "Three.")]
    with monkeypatch.context() as patch:
        patch.setattr(TantivyStore, "replace", failing)
        nothing = await mine.post(URL, data=form(sent[0], sent[2]))  # is indexed
        if isinstance(failure, NotFound):
            check_problem(await mine.post(URL, data=form(*sent)), 404, "not-found")
            return
        assert check_problem(nothing, 500, "store")["detail"] == "it broke"
        found = await send(mine, *sent)
    assert [(each["indexed"], each["failed"]) for each in found] == [(0, 1), (1, 0), (0, 1), (0, 1)]
    assert found[2]["problems"] == ["it broke"]
    assert "not read, because an earlier file" in found[3]["problems"][0]
    again = await send(mine, *sent[1:])
    assert [(each["indexed"], each["unchanged"]) for each in again] == [(0, 1), (1, 0), (1, 0)]


DOCUMENTS = "/collections/mine/documents"


def originals(folder: Path) -> list[Path]:
    return [*folder.glob("collections/mine/files/*")]


@asynccontextmanager
async def keeping(folder: Path, *, kept: bool = True) -> AsyncIterator[Live]:
    """A server that keeps files, with a PDF of two pages and three other files."""
    settings = config(folder, ingest={"keep_files": kept}, server={"principals_header": "X-Groups"})
    async with live(settings=settings, own_stores=True) as service:
        await put(service)
        await send(
            service, ("rüles.pdf", RULES), ("p.html", "<p>Text.<script>x</script>"),
            ("a.md", "# A\nText."), ("rows.jsonl", '{"id": "rows.jsonl", "text": "x"}'),
        )  # fmt: skip
        yield service


async def test_the_original_is_given_back_without_a_way_to_act_as_the_page(tmp_path: Path) -> None:
    need("pypdf", "pdfplumber")
    async with keeping(tmp_path) as service:
        assert (await service.get(f"{DOCUMENTS}/r%C3%BCles.pdf%23page=2")).json()[
            "original"
        ] is True
        for name, kind, how, sandboxed in (
            ("r%C3%BCles.pdf%23page=2", "application/pdf", "inline", False),
            ("p.html", "application/octet-stream", "attachment", True),
            ("a.md", "text/plain", "inline", True),
        ):
            response = await service.get(f"{DOCUMENTS}/{name}/file")
            assert (response.status, response.content_type) == (200, kind)
            assert response.headers["Content-Disposition"].startswith(f"{how};")
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            policy = response.headers.get("Content-Security-Policy", "")
            assert policy.startswith("sandbox;") is sandboxed
            assert name != "r%C3%BCles.pdf%23page=2" or response.content == RULES
        for name in ("rows.jsonl", "nothing", "p.html/file"):
            check_problem(await service.get(f"{DOCUMENTS}/{name}/file"), 404, "not-found")


async def test_the_original_of_a_scan_is_shown(tmp_path: Path) -> None:
    need("rapidocr")
    made = scan(tmp_path / "scan.png").read_bytes()
    async with keeping(tmp_path / "data") as service:
        (found,) = await send(service, ("scan.png", made))
        assert found["indexed"] == 1
        response = await service.get(f"{DOCUMENTS}/scan.png/file")
        assert (response.content_type, response.content) == ("image/png", made)
        assert response.headers["Content-Disposition"].startswith("inline;")
        assert response.headers["Content-Security-Policy"].startswith("sandbox;")


async def test_a_file_of_which_a_part_is_for_others_is_for_nobody_else(tmp_path: Path) -> None:
    need("pypdf", "pdfplumber")
    async with keeping(tmp_path) as service:
        part = {"id": "a.md#secret", "text": "x", "access": "board"}
        own = {"id": "a.md/file", "text": "A document of this name."}
        assert (await service.post(DOCUMENTS, json={"documents": [part]})).status == 200
        for groups, status in (("board", 200), ("sales", 404)):
            headers = {"X-Groups": groups}
            assert (await service.get(f"{DOCUMENTS}/a.md/file", headers=headers)).status == status
        assert (await service.post(DOCUMENTS, json={"documents": [own]})).status == 200
        assert (await service.get(f"{DOCUMENTS}/a.md/file")).json()["id"] == "a.md/file"


async def test_an_original_goes_with_its_last_document(tmp_path: Path) -> None:
    need("pypdf", "pdfplumber")
    async with keeping(tmp_path) as service:
        for number, left in ((1, 3), (2, 2)):
            page = f"{DOCUMENTS}/r%C3%BCles.pdf%23page={number}"
            assert (await service.delete(page)).status == 204
            assert len(originals(tmp_path)) == left
        body = {"documents": [{"text": "Another."}]}
        assert (await service.put(DOCUMENTS, json=body)).status == 200
        assert not originals(tmp_path)


async def test_nothing_is_kept_by_default(tmp_path: Path) -> None:
    need("pypdf", "pdfplumber")
    async with keeping(tmp_path, kept=False) as service:
        problem = check_problem(await service.get(f"{DOCUMENTS}/a.md/file"), 404, "not-found")
        assert "ingest.keep_files" in problem["detail"]
        assert not originals(tmp_path)


def test_originals_are_refused_where_other_gateways_would_lack_them() -> None:
    with pytest.raises(ValueError, match=r"ingest\.keep_files: .* other gateways"):
        config(ingest={"keep_files": True}, retrieval={"elasticsearch_url": "http://es:9200"})
