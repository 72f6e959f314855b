"""Questions over files as a company has them, asked of the default service.

    python -m tests.benchmarks.company_files [--keep FOLDER]

`company/files.md` has 43 documents (policies in three versions, price lists, manuals, minutes, in
English, German and French). They are written as PDF (by Chromium), DOCX, HTML, Markdown, XLSX, CSV
and PPTX, ingested as `revelator ingest` does, and asked the 49 questions of `company/files.jsonl`.
Printed are the answers, and by kind how many are right, wrong, wrong with a confidence of at least
0.9, and declined. An unanswerable question (`absent`) is right if it is declined.

`--keep` writes the files to a folder.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
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

from service.workshop.rows import read_lines
from tests.benchmarks.extractor import COMPANY, ask_service, tell
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


async def run(options: argparse.Namespace) -> None:
    rows = list(read_lines(COMPANY / "files.jsonl"))
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder)
        outcomes = await ask_service(folder, rows, {})
    tell([row["kind"] for row in rows], outcomes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for the files")
    asyncio.run(run(parser.parse_args()))
