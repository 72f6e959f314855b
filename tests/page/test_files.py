"""Files that are dropped on the page: each with its result, and deleted again."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from service.api.feedback import rows_for_evaluation
from tests.api.test_files import form
from tests.conftest import need
from tests.page.driving import DONE, ask, violations
from tests.page.test_look import FRAME_MS, longest_task, longest_task_of
from tests.support.live import answering, config, live
from tests.support.office import docx, pdf

DROP = """(files) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  const init = { dataTransfer: data, bubbles: true, cancelable: true };
  window.dispatchEvent(new DragEvent("drop", init));
}"""


async def test_files_are_dropped_listed_and_deleted(
    tab: Any, tmp_path: Path, pictures: Path
) -> None:
    async with live(answering(), settings=config(tmp_path), own_stores=True) as service:
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
        assert (await service.get("/collections/default")).json()["documents"] == 1
        await tab.click("button[aria-label='Delete prices.csv']")
        await tab.wait_for_selector("#files-told:has-text('prices.csv is deleted.')")
        assert (await service.get("/collections/default")).json()["documents"] == 0


DROP_BYTES = """(files) => {
  const data = new DataTransfer();
  const bytes = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  for (const [name, text] of files) data.items.add(new File([bytes(text)], name));
  const init = { dataTransfer: data, bubbles: true, cancelable: true };
  window.dispatchEvent(new DragEvent("drop", init));
}"""


@pytest.mark.timeout(900)
async def test_none_of_two_hundred_files_is_lost(tab: Any, tmp_path: Path, pictures: Path) -> None:
    need("pypdf", "pdfplumber", "mammoth")
    made: list[tuple[str, bytes]] = []
    for n in range(25):  # files that a parser reads take long, so there are few of them
        text = f"The pump HP-{n} costs {n},000 EUR."
        made += [
            (f"a{n}.md", f"# Pump {n}\n{text}".encode()), (f"b{n}.txt", text.encode()),
            (f"c{n}.csv", f"Model,Price\nHP-{n},{n}000".encode()),
            (f"d{n}.html", f"<title>Pump {n}</title><p>{text}".encode())
            if n < 5 else (f"d{n}.md", text.encode()),
            (f"e{n}.pdf", pdf([text, "Second page."]))
            if n < 5 else (f"e{n}.md", f"# One\n{text}\n# Two\nMore.".encode()),
            (f"f{n}.docx", docx([("Normal", text)])) if n < 5 else (f"f{n}.txt", text.encode()),
            (f"g{n}.pdf", b"%PDF-1.7 damaged") if n % 2 else (f"g{n}.txt", b""),
            (f"h{n}.zip", b"PK\x03\x04"),
        ]  # fmt: skip
    async with live(answering(), settings=config(tmp_path), own_stores=True) as service:
        await tab.goto(service.url)
        files = [[name, b64encode(content).decode()] for name, content in made]

        async with longest_task(tab) as longest:
            began = perf_counter()
            await tab.evaluate(DROP_BYTES, files)
            told = "#files-told:has-text('All files are done')"
            await tab.wait_for_selector(told, timeout=600_000)
            print(f"200 files in {perf_counter() - began:.1f} s")
        rows = await tab.eval_on_selector_all(
            "#file-list .file", "rows => rows.map(row => [row.children[0].textContent, "
            "row.children[1].textContent, row.classList.contains('bad')])",
        )  # fmt: skip
        assert [name for name, *_ in rows] == [name for name, _ in made]
        for name, result, bad in rows:
            assert bad is (name[0] in "gh")
            documents = "2 documents" if name.startswith("e") else "1 document"
            assert result == documents if not bad else "document" not in result
        assert (await service.get("/collections/default")).json()["documents"] == 25 * 7
        assert await tab.inner_text("#files-told") == "All files are done. 50 of 200 have problems."
        await tab.screenshot(path=pictures / "upload.png")
        assert not await violations(tab)
    assert longest[0] < FRAME_MS


async def test_two_thousand_documents_are_listed_smoothly(
    tab: Any, tmp_path: Path, pictures: Path
) -> None:
    documents = [{"id": f"n{n:04}", "title": f"Note {n}", "text": "Text."} for n in range(2_000)]
    async with live(answering(), settings=config(tmp_path), own_stores=True) as service:
        assert (await service.put("/collections/default", json={})).status == 200
        body = {"documents": documents}
        assert (await service.post("/collections/default/documents", json=body)).status == 200
        await tab.goto(service.url)

        async def listed() -> None:
            await tab.reload()
            began = perf_counter()
            await tab.click("#documents > summary")
            await tab.wait_for_selector("#document-list .file >> text=Note 49")
            first = perf_counter() - began
            for n in range(1, 40):
                await tab.click("#document-more")
                await tab.wait_for_selector(f"#document-list .file >> text=n{50 * n:04}")
            print(f"the first in {first:.2f} s, 2,000 in {perf_counter() - began:.1f} s")

        assert await longest_task_of(tab, listed) < FRAME_MS
        assert await tab.inner_text("#documents-told") == "2000 documents"
        await tab.screenshot(path=pictures / "documents.png")


async def test_a_citation_opens_the_original_at_its_page(
    tab: Any, tmp_path: Path, pictures: Path
) -> None:
    need("pypdf", "pdfplumber")
    settings = config(tmp_path, ingest={"keep_files": True}, server={"keys": ["owner"]})
    pages = ["The pump is a HP-20.", "The pump HP-20 costs 1240 euros."]
    async with live(answering("1240 euros"), settings=settings, own_stores=True) as service:
        service.http.headers["X-API-Key"] = "owner"
        assert (await service.put("/collections/default", json={})).status == 200
        data = form(("prices.pdf", pdf(pages)), ("notes.md", "# Notes\nAnother text."))
        assert (await service.post("/collections/default/files", data=data)).status == 200
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
