"""Files over HTTP: each result is named, and a request that breaks off changes nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.api import files as files_module
from service.api import wire as bodies
from tests.api.test_bad_input import check_problem
from tests.api.test_collections import put, stored
from tests.conftest import need
from tests.support.live import Live
from tests.support.office import pdf

pytestmark = pytest.mark.anyio
URL = "/collections/mine/files"


def form(*files: tuple[str, bytes | str]) -> aiohttp.FormData:
    data = aiohttp.FormData(quote_fields=False)
    for name, content in files:
        raw = content.encode() if isinstance(content, str) else content
        data.add_field("files", raw, filename=name)
    return data


async def send(service: Live, *files: tuple[str, bytes | str]) -> list[dict[str, Any]]:
    async with service.http.post(URL, data=form(*files)) as response:
        assert response.status == 200, await response.text()
        found: list[dict[str, Any]] = (await response.json())["files"]
        return found


async def test_each_file_is_read_and_its_result_named(tmp_path: Path) -> None:
    need("pypdf", "pdfplumber")
    async with stored(tmp_path) as service:
        await put(service)
        found = await send(
            service, ("rules.pdf", pdf(["One.", "Two."])),
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
        async with service.http.get(at) as response:
            assert (await response.json())["passages"][0]["text"] == "Two."
        (again,) = await send(service, ("rules.pdf", pdf(["One."])))
        assert (again["indexed"], again["unchanged"], again["removed"]) == (0, 1, 1)
        async with service.http.get("/collections/mine") as response:
            assert (await response.json())["state"] == "complete"


async def test_progress_is_streamed(tmp_path: Path) -> None:
    async with stored(tmp_path) as service:
        await put(service)
        headers = {"Accept": "text/event-stream"}
        async with service.http.post(
            URL, data=form(("a.md", "Text.")), headers=headers
        ) as response:
            events = [line for line in (await response.text()).splitlines() if line]
        assert events[-2] == "event: report"
        assert json.loads(events[-1].removeprefix("data: "))["files"][0]["indexed"] == 1


async def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MOST_BYTES", 10_000)
    async with stored(tmp_path) as service:
        await put(service)
        large = form(("a.txt", b"x" * 20_000))
        async with service.http.post(URL, data=large) as response:
            await check_problem(response, 413, "body-too-large")
        async with service.http.post("/collections/gone/files", data=form(("a", b"x"))) as response:
            await check_problem(response, 404, "not-found")
        async with service.http.post(URL, json={}) as response:
            await check_problem(response, 415, "unsupported-media-type")
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        field = b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n--b--\r\n'
        for body in (b"", b"--b\r\nno header", b"--b--\r\n", field):
            async with service.http.post(URL, data=body, headers=kind) as response:
                await check_problem(response, 400, "malformed-request")
        bare = {"Content-Type": "multipart/form-data"}
        async with service.http.post(URL, data=b"x", headers=bare) as response:
            await check_problem(response, 400, "malformed-request")


async def test_an_upload_that_breaks_off_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.5)
    begun = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.txt"\r\n\r\nSome text.'

    async def stalled() -> Any:
        yield begun
        await asyncio.sleep(30)

    async with stored(tmp_path) as service:
        await put(service)
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        async with service.http.post(URL, data=stalled(), headers=kind) as response:
            await check_problem(response, 408, "request-timeout")
        async with service.http.get("/collections/mine") as response:
            found = await response.json()
        assert (found["documents"], found["state"]) == (0, "complete")


async def test_a_file_that_is_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "LARGEST", 100)
    async with stored(tmp_path) as service:
        await put(service)
        found = await send(service, ("a.txt", b"x" * 101), ("b.txt", "Text."))
        assert [each["indexed"] for each in found] == [0, 1]
        assert "larger than 50,000,000 bytes" in found[0]["problems"][0]
