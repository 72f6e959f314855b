"""The page on what `revelator serve` has by default: the shipped model, sample and encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.page.driving import DONE, ask, violations
from tests.support.live import config, live


async def test_a_question_of_the_sample_is_answered(
    tab: Any, tmp_path: Path, pictures: Path
) -> None:
    settings = config(data_dir=tmp_path / "data")
    async with live(settings=settings, own_stores=True, own_engines=True, watched=False) as service:
        await tab.goto(service.url)
        await tab.wait_for_selector("#collection option[value=sample]", state="attached")
        tab.set_default_timeout(90_000)
        await tab.click("text=Who directed Laserblast?")
        question = await tab.input_value("#question")
        await ask(tab, question)
        await tab.wait_for_selector(DONE)
        assert "Michael Rae" in await tab.inner_text(".answer")
        await tab.screenshot(path=pictures / "default.png", full_page=True)
        assert not await violations(tab)
        await tab.click(".citation >> nth=0")
        assert "Michael Rae" in await tab.inner_text("#passage-text mark")
        await tab.screenshot(path=pictures / "citation.png")
