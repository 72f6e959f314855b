"""Questions over files as a company has them, asked of the default service.

    python -m tests.benchmarks.company_files [--keep FOLDER] [--cells]

`company/files.md` has 43 documents (policies in three versions, price lists, manuals, minutes, in
English, German and French). They are written as PDF (by Chromium), DOCX, HTML, Markdown, XLSX, CSV
and PPTX, ingested as `revelator ingest` does, and asked the 49 questions of `company/files.jsonl`.
Printed are the answers, and by kind how many are right, wrong, wrong with a confidence of at least
0.9, and declined. An unanswerable question (`absent`) is right if it is declined.

`--cells` asks for 60 cells of 20 made-up PDF and DOCX instead, whose tables have lines, some lines
or none, cells over several rows and columns, long texts, and several pages. A cell is right if one
of the passages shown has a row with its name, and its header before its value.

`--keep` writes the files to a folder.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import openpyxl
import pptx
from markdown_it import MarkdownIt

from service.answer.events import PassagesFound
from service.answer.request import AnswerRequest
from service.core.settings import load_settings
from service.retrieval.base import anyone
from service.retrieval.ingest.pipeline import ingest
from service.runtime import open_runtime
from service.workshop.facts.rows import read_lines
from tests.benchmarks.reader import COMPANY, ask_service, tell
from tests.support.office import docx

STYLE = "<style>body { font: 12pt sans-serif } td, th { border: 1px solid; padding: 6pt }</style>"
LEVELS = {"": "Normal", "#": "Heading 1", "##": "Heading 2"}


class Block(NamedTuple):
    """A heading or paragraph with its style, or the rows of a table."""

    style: str
    text: str
    rows: list[list[str]]


def blocks_of(markdown: str) -> Iterator[Block]:
    for part in re.split(r"\n\n+", markdown.strip()):
        lines = part.splitlines()
        if lines[0].startswith("|"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            yield Block("", "", [rows[0], *rows[2:]])
            continue
        for line in lines:
            marks, text = re.fullmatch(r"(#*) ?(.*)", line).groups()  # type: ignore[union-attr]
            yield Block(LEVELS[marks], text, [])


def html(markdown: str) -> str:
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    title = next(blocks_of(markdown)).text
    return f"<!doctype html><meta charset=utf-8><title>{title}</title>{STYLE}{body}"


def xlsx(markdown: str) -> bytes:
    book, packed = openpyxl.Workbook(), io.BytesIO()
    sheet = book.active
    for block in blocks_of(markdown):
        for row in block.rows or [[block.text], []]:
            sheet.append([float(cell) if re.fullmatch(r"[\d.]+", cell) else cell for cell in row])
    book.save(packed)
    return packed.getvalue()


def slides(markdown: str) -> bytes:
    shown, packed = pptx.Presentation(), io.BytesIO()
    for block in blocks_of(markdown):
        if block.style != "Normal":
            slide = shown.slides.add_slide(shown.slide_layouts[1])
            slide.shapes.title.text = block.text
        else:
            slide.placeholders[1].text = block.text
    shown.save(packed)
    return packed.getvalue()


def comma_separated(markdown: str) -> str:
    written = io.StringIO()
    for block in blocks_of(markdown):
        csv.writer(written).writerows(block.rows)
    return written.getvalue()


def print_pdf(page: Path) -> None:
    """Print a page by Chromium as PDF beside it, and delete it."""
    chromium = shutil.which("chromium") or "chromium"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    target = f"--print-to-pdf={page.with_suffix('.pdf')}"
    subprocess.run([chromium, *options, target, str(page)], check=True, capture_output=True)
    page.unlink()


def write_files(folder: Path) -> None:
    parts = re.split(r"^=== (.+)\n", (COMPANY / "files.md").read_text("utf-8"), flags=re.M)[1:]
    for name, markdown in zip(parts[::2], parts[1::2], strict=True):
        path = folder / name
        match path.suffix:
            case ".pdf":
                page = path.with_suffix(".print.html")
                page.write_text(html(markdown), "utf-8")
                print_pdf(page)
                page.with_suffix(".pdf").rename(path)
            case ".docx":
                blocks = [(each.style, each.rows or each.text) for each in blocks_of(markdown)]
                path.write_bytes(docx(blocks))
            case ".html":
                path.write_text(html(markdown), "utf-8")
            case ".xlsx":
                path.write_bytes(xlsx(markdown))
            case ".pptx":
                path.write_bytes(slides(markdown))
            case ".csv":
                path.write_text(comma_separated(markdown), "utf-8")
            case _:
                path.write_text(markdown, "utf-8")


COLUMNS = {
    "Price": "{n},{m} EUR", "Weight": "{n}.{m} kg", "Delivery time": "{n} weeks",
    "In stock": "{n}{m}", "Material": "steel 1.{n}{m}", "Supplier": "Supplier {n}{m} GmbH, Hamburg",
    "Shelf": "R{n}-{m}",
}  # fmt: skip
LINES = "td, th { border: 1px solid }"
STYLES = {
    "lines": LINES, "one line": f"table {{ border-collapse: collapse }} {LINES}",
    "none": "td, th { padding: 2pt 14pt; text-align: left }",
    "horizontal": "table { border-collapse: collapse } tr { border-bottom: 1px solid }",
    "shades": "tr:nth-child(even) td { background: #ddd } td, th { padding: 3pt 12pt }",
    "narrow": f"table {{ width: 11cm }} {LINES}",
    "groups": LINES, "two headers": LINES, "pages": LINES, "docx": "",
}  # fmt: skip


class Cell(NamedTuple):
    row: str
    column: str
    value: str


def write_tables(folder: Path) -> list[Cell]:
    """Write 20 files with a table each, two of each style. Return three cells of each."""
    rng, asked = random.Random(0), list[Cell]()
    for number, style in enumerate([*STYLES, *STYLES]):
        names = rng.sample([*COLUMNS], 4 if style == "narrow" else 5)
        kind = rng.choice(["Valve", "Pump", "Sensor", "Filter"])
        rows = [
            [f"{kind} {chr(65 + number)}{100 + at}", *made_up(names, rng)]
            for at in range(70 if style == "pages" else 9)
        ]
        chosen = rng.sample(rows, 3)
        columns = rng.sample(range(4), 3)
        asked += [
            Cell(row[0], names[at], row[at + 1]) for row, at in zip(chosen, columns, strict=True)
        ]
        title = f"Catalogue of {kind.lower()}s {chr(65 + number)}"
        header = ["Article", *names]
        if style == "docx":
            blocks = [("Heading 1", title), ("", [header, *rows])]
            (folder / f"{number}.docx").write_bytes(docx(blocks))
            continue
        page = folder / f"{number}.html"
        begin = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>"
        text = f"<style>{STYLES[style]}</style><p>All of it is valid from May on.</p>"
        page.write_text(begin + text + table(style, header, rows), "utf-8")
        print_pdf(page)
    return asked


def made_up(names: list[str], rng: random.Random) -> list[str]:
    return [COLUMNS[name].format(n=rng.randint(2, 9), m=rng.randint(100, 999)) for name in names]


def table(style: str, header: list[str], rows: list[list[str]]) -> str:
    """Return the HTML of a table. Its first column has groups of three rows, or its header a row
    above, where the style says so."""

    def cells(tag: str, texts: list[str]) -> str:
        return "".join(f"<{tag}>{text}</{tag}>" for text in texts)

    head = f"<tr>{cells('th', header)}</tr>"
    if style == "two headers":
        tops = "<th>Article</th><th colspan=2>Purchase</th><th colspan=3>Store</th>"
        head = f"<tr>{tops}</tr><tr>{cells('th', ['', *header[1:]])}</tr>"
    body = ""
    for at, row in enumerate(rows):
        group = f"<td rowspan=3>Series {at // 3}</td>" if style == "groups" and at % 3 == 0 else ""
        body += f"<tr>{group}{cells('td', row)}</tr>"
    if style == "groups":
        head = head.replace("<tr>", "<tr><th>Series</th>", 1)
    return f"<table>{head}{body}</table>"


async def ask_for_cells(folder: Path) -> None:
    asked, found = write_tables(folder), 0
    with tempfile.TemporaryDirectory() as data:
        async with open_runtime(load_settings(None, {"data_dir": data})) as runtime:
            assert runtime.stores is not None
            await runtime.stores.collections.create("default")
            await ingest([folder], "default", runtime.stores.collections)
            for row, column, value in asked:
                request = AnswerRequest(question=f"What is the {column.lower()} of the {row}?")
                lines = [
                    line
                    async for event in runtime.ask(await runtime.prepare(request, anyone))
                    if isinstance(event, PassagesFound)
                    for passage in event.passages
                    for line in passage.text.splitlines()
                ]
                right = any(row in line and f"{column}: {value}" in line for line in lines)
                found += right
                if not right:
                    print(f"  not shown: {row}, {column}: {value}")
    print(f"cells shown with their header: {found} of {len(asked)}")


async def run(options: argparse.Namespace) -> None:
    rows = list(read_lines(COMPANY / "files.jsonl"))
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        if options.cells:
            await ask_for_cells(folder)
            return
        write_files(folder)
        outcomes = await ask_service(folder, rows, {})
    tell([row["kind"] for row in rows], outcomes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for the files")
    parser.add_argument("--cells", action="store_true", help="ask for cells of made-up tables")
    asyncio.run(run(parser.parse_args()))
