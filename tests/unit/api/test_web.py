"""The page's files as the gateway sends them, without a browser."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from service.api.app import FOLDER
from service.api.openapi import event_models
from service.cli.terminal import sample_questions
from tests.support.live import config, live

LARGEST = 150_000  # bytes of all files
TYPES = {
    ".html": {"text/html"}, ".css": {"text/css"}, ".svg": {"image/svg+xml"},
    ".js": {"text/javascript", "application/javascript"},
}  # fmt: skip
FILES = sorted(FOLDER.iterdir())
ROOT = Path(__file__).parents[3]


async def test_the_page_needs_no_key_and_its_policy_allows_only_its_own_files() -> None:
    async with live(settings=config(server={"keys": ["secret"]})) as service:
        page = await service.get("/")
        assert "<title>Revelator</title>" in page.text
        assert (await service.get("/page/app.js")).status == 200
        assert (await service.get("/collections")).status == 401
        paths = (await service.get("/openapi.json")).json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/page")]
    policy = page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"]
    assert directives["script-src"] == "'self'"
    assert directives["frame-ancestors"] == directives["form-action"] == "'none'"
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
async def test_each_file_has_its_type_and_is_sent_again_only_once_changed(path: Path) -> None:
    where = "/" if path.name == "index.html" else f"/page/{path.name}"
    async with live() as service:
        first = await service.get(where)
        assert first.content_type in TYPES[path.suffix]
        assert first.headers["Cache-Control"] == "no-cache"
        assert first.content == await asyncio.to_thread(path.read_bytes)
        tag = first.headers["ETag"]
        for given, status in ((tag, 304), (f'"other", W/{tag}', 304), ('"other"', 200)):
            again = await service.get(where, headers={"If-None-Match": given})
            assert again.status == status
            assert bool(again.content) == (status == 200)
            assert again.headers["ETag"] == tag
        head = await service.request("HEAD", where)
        assert head.status == 200
        assert not head.content


@pytest.mark.parametrize("name", ["web.py", "__init__.py", "..%2Fweb.py", "%00"])
async def test_nothing_else_is_served(name: str) -> None:
    async with live() as service:
        response = await service.get(f"/page/{name}")
        assert response.status == 404
        problem = response.json()
    assert problem["type"] == "urn:revelator:problem:not-found"


def test_the_files_are_small_and_name_no_other_host() -> None:
    assert sum(path.stat().st_size for path in FILES) <= LARGEST
    for path in FILES:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path.name


def test_no_text_becomes_markup() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in text, f"{path.name} uses {way}"
        assert not re.search(r"\s(on\w+|style)=", text), f"{path.name} has inline code or style"


def test_every_type_of_event_is_drawn() -> None:
    state = (FOLDER / "state.js").read_text(encoding="utf-8")
    folds = state.partition("export const FOLDS = {")[2].partition("\n};")[0]
    assert set(re.findall(r"^  (\w+)\(run", folds, re.MULTILINE)) == set(event_models())


def test_the_examples_are_questions_of_the_sample() -> None:
    listed = (FOLDER / "app.js").read_text(encoding="utf-8").partition("EXAMPLES = [")[2]
    examples = re.findall(r'"(.+)"', listed.partition("];")[0])
    assert len(examples) >= 4
    assert set(examples) <= {sample["question"] for sample in sample_questions()}


def test_the_package_contains_the_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["service"]
    assert {"index.html", "page.css", "app.js"} <= {path.name for path in FILES}
    service = FOLDER.parents[1]
    packed = {path for pattern in patterns for path in service.glob(pattern)}
    assert set(FILES) <= packed
