"""Files that are dropped on the page: each with its result, and deleted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.api.feedback import rows_for_evaluation
from tests.api.test_files import form
from tests.conftest import need
from tests.page.driving import DONE, ask, violations
from tests.support.live import answering, config, live
from tests.support.office import pdf
from tests.support.scripted import ScriptedGenerator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(100)]

DROP = """(files) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  const init = { dataTransfer: data, bubbles: true, cancelable: true };
  window.dispatchEvent(new DragEvent("drop", init));
}"""


async def test_files_are_dropped_listed_and_deleted(
    tab: Any, tmp_path: Path, pictures: Path
) -> None:
    settings = config(data_dir=str(tmp_path), retrieval={"embedding_model": "hashing"})
    engine = ScriptedGenerator(answering())
    async with live(engine, settings=settings, own_stores=True) as service:
        await tab.goto(service.url)
        files = [["prices.csv", "Model,Price\nHP-20,1240"], ["empty.txt", ""], ["x.zip", "PK"]]
        await tab.evaluate(DROP, files)
        await tab.wait_for_selector("#files-told:has-text('All files are done.')")
        rows = await tab.eval_on_selector_all(".file", "rows => rows.map(row => row.textContent)")
        assert rows[0] == "prices.csv1 documentDelete"
        assert rows[1] == "empty.txtthe file is empty"
        assert "unknown file type '.zip'" in rows[2]
        await tab.wait_for_selector("#collection option[value=default]", state="attached")
        assert not await violations(tab)
        await tab.screenshot(path=pictures / "files.png")
        listed = await tab.wait_for_selector("#document-list .file")
        assert await listed.text_content() == "pricesprices.csv#row=2-2, 1 passageDelete"
        await tab.click("#document-list .name")
        await tab.wait_for_selector("#passage-dialog[open] >> text=Price: 1240")
        await tab.click("#passage-close")
        await tab.fill("#document-text", "nothing")
        await tab.wait_for_selector("#documents-told:has-text('0 documents')")
        await tab.fill("#document-text", "PRICES")
        await tab.wait_for_selector("#documents-told:has-text('1 document')")
        async with service.http.get("/collections/default") as response:
            assert (await response.json())["documents"] == 1
        await tab.click("button[aria-label='Delete prices.csv']")
        await tab.wait_for_selector("#files-told:has-text('prices.csv is deleted.')")
        async with service.http.get("/collections/default") as response:
            assert (await response.json())["documents"] == 0


async def test_a_citation_opens_the_original_at_its_page(
    tab: Any, tmp_path: Path, pictures: Path
) -> None:
    need("pypdf", "pdfplumber")
    settings = config(
        data_dir=str(tmp_path), retrieval={"embedding_model": "hashing"},
        ingest={"keep_files": True}, server={"keys": ["owner"]},
    )  # fmt: skip
    pages = ["The pump is a HP-20.", "The pump HP-20 costs 1240 euros."]
    async with live(answering("1240 euros"), settings=settings, own_stores=True) as service:
        service.http.headers["X-API-Key"] = "owner"
        async with service.http.put("/collections/default", json={}) as response:
            assert response.status == 200
        data = form(("prices.pdf", pdf(pages)), ("notes.md", "# Notes\nAnother text."))
        async with service.http.post("/collections/default/files", data=data) as response:
            assert response.status == 200
        await tab.goto(service.url)
        await tab.fill("#key", "owner")
        await tab.click("#key-form button.main")
        await ask(tab, "What does the pump HP-20 cost?")
        await tab.wait_for_selector(DONE)
        await tab.click("button[aria-label='The answer is wrong']")
        await tab.wait_for_selector(".rating >> text=this is kept")
        await tab.fill(".rating [name=expected]", "1240 euros, without tax")
        assert not await violations(tab)
        await tab.screenshot(path=pictures / "feedback.png", full_page=True)
        await tab.press(".rating [name=expected]", "Enter")
        await tab.wait_for_selector(".rating .choices", state="hidden")
        await tab.click(".citation")
        await tab.wait_for_selector("#passage-file:not([hidden])")
        assert not await violations(tab)
        await tab.screenshot(path=pictures / "citation-original.png")
        async with tab.context.expect_page() as opened:
            await tab.click("#passage-file")
        shown = await opened.value
        assert shown.url.startswith("blob:")
        assert shown.url.endswith("#page=2")
        await shown.close()
        await tab.click("#passage-close")
        await tab.click("#documents summary")
        await tab.click("#document-list .name >> text=Notes")
        async with tab.expect_download() as saved:
            await tab.click("#passage-file")
        assert (await saved.value).suggested_filename == "notes.md"
    (row,) = rows_for_evaluation(tmp_path)
    assert row["answers"] == ["1240 euros, without tax"]
