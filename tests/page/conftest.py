"""A real browser, once for each module: a loop that outlives them would be found running by other
tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need, unavailable


@pytest.fixture(scope="module")
async def browser(anyio_backend: str) -> AsyncIterator[Any]:
    """Headless Chromium: the one at CHROMIUM, or Debian's."""
    need("playwright", "axe_playwright_python")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        unavailable("Chromium", "install Debian's `chromium`, or set CHROMIUM to its path")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield browser
        await browser.close()


@pytest.fixture
async def tab(browser: Any) -> AsyncIterator[Any]:
    """A tab of its own session. Errors of scripts, violations of the policy and requests to other
    hosts fail the test."""
    async with await browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        tab = await context.new_page()
        tab.set_default_timeout(60_000)
        wrong: list[str] = []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: wrong.append(said.text) if "Policy" in said.text else None)
        tab.on("request", lambda sent: wrong.append(sent.url) if _is_outside(sent.url) else None)
        yield tab
        assert not wrong


def _is_outside(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "blob:", "data:"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots are kept: PAGE_SCREENSHOTS, or the test's own folder."""
    folder = Path(os.environ.get("PAGE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
