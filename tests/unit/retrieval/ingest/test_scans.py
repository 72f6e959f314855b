"""Scans by the real recogniser, and pages from right to left as a browser prints them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from service.retrieval.ingest.formats.pdf import in_logical_order
from tests.conftest import need, unavailable
from tests.support.office import IMAGE, SCANNED, pdf, scan
from tests.unit.retrieval.ingest.test_office_formats import read

need("pypdf", "pdfplumber", "PIL")

ROWS = ["Model: HK-7; Price: 1,240; Delivery: 2 weeks.", "Model: HK-9; Price: 3,150; Delivery: 4"]


@pytest.mark.parametrize("name", ["scan.pdf", "scan.jpg", "scan.tif", "scan"])
def test_the_text_of_a_scan_is_recognised(tmp_path: Path, name: str) -> None:
    need("rapidocr")
    pages = 2 if name in {"scan.pdf", "scan.tif"} else 1
    made = scan(tmp_path / (name if "." in name else "scan.png"), pages).rename(tmp_path / name)
    found, problems = read(made)
    assert not problems
    ids = [f"{name}#page={n}" for n in (1, 2)] if pages == 2 else [name]
    assert [each.id for each in found] == ids
    for each in found:
        assert each.title == "scan"
        assert each.text.split("\n")[:3] == SCANNED
        assert all(row in each.text for row in ROWS)


def test_columns_of_prose_are_read_one_after_the_other(tmp_path: Path) -> None:
    need("rapidocr")
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(24)
    image = Image.new("RGB", (1240, 700), "white")
    draw = ImageDraw.Draw(image)
    draw.text(
        (80, 40),
        "Report of the year on the works and on the people in it, by the board",
        "black",
        font,
    )
    columns = [
        [f"{name} line number {n} of a text in columns" for n in range(5)]
        for name in ("Left", "Right")
    ]
    for x, column in zip((80, 660), columns, strict=True):
        for n, line in enumerate(column):
            draw.text((x, 140 + 60 * n), line, "black", font)
    image.save(tmp_path / "report.png")
    (found,), _ = read(tmp_path / "report.png")
    assert found.text.split("\n")[1:] == [*columns[0], *columns[1]]


def test_images_without_text_and_damaged_ones_are_named(tmp_path: Path) -> None:
    need("rapidocr")
    from PIL import Image

    Image.new("RGB", (300, 300), "white").save(tmp_path / "white.png")
    assert read(tmp_path / "white.png") == ([], [": no text was recognised in the image"])
    found, (problem,) = read(tmp_path / "scan.png", scan(tmp_path / "a.png").read_bytes()[:2_000])
    assert not found
    assert "the PNG, JPEG or TIFF file is damaged" in problem
    found, (problem,) = read(tmp_path / "scan.pdf", pdf([IMAGE]))
    assert not found
    assert problem.endswith("are images, as of a scan; no text was recognised in them")


@pytest.mark.parametrize(
    ("seen", "to_left", "read_as"),
    [
        ("ורי 74 אוה ריחמה", True, "המחיר הוא 74 ירו"),
        (".HP-60 Portal ךרד", True, "דרך HP-60 Portal."),
        ("(21) אבה", True, "הבא (21)"),
        ("170   74   הגרוונ", True, "נוורגה   74   170"),
        ("%25.5 אל", True, "לא 25.5%"),
        ("The word םולש means peace.", False, "The word שלום means peace."),
        ("Plain text, 74.", False, "Plain text, 74."),
    ],
)
def test_lines_are_put_in_the_order_of_reading(seen: str, to_left: bool, read_as: str) -> None:
    assert in_logical_order(seen, to_left=to_left) == read_as


ARABIC = "تبلغ البدلة اليومية في النرويج 74 يورو."
HEBREW = "יש להגיש קבלות תוך 21 ימים דרך HP-60 Portal."
PAGE = """<!doctype html><meta charset="utf-8"><title>t</title><html dir="{direction}">
<style>td {{ border: {border}px solid; padding: 0 2em }}</style><p>{text}</p>
<table><tr><td>{}<td>{}</tr><tr><td>{}<td>{}</tr><tr><td>{}<td>{}</tr></table>"""
CELLS = ["الدولة", "البدلة", "النرويج", "74", "فرنسا", "43"]


@pytest.mark.parametrize("border", [0, 1])
def test_a_pdf_from_right_to_left_is_read_in_logical_order(tmp_path: Path, border: int) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        unavailable("Chromium", "install Debian's `chromium`")
    for name, direction, text, cells in (
        ("rtl", "rtl", f"{ARABIC}<p>{HEBREW}", CELLS),
        ("ltr", "ltr", f"It says: {HEBREW} This is English, and as long as that.", ["a", "b"] * 3),
    ):
        page = tmp_path / f"{name}.html"
        page.write_text(PAGE.format(*cells, direction=direction, border=border, text=text), "utf-8")
        printed = tmp_path / f"{name}.pdf"
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
             f"--print-to-pdf={printed}", f"--user-data-dir={tmp_path / 'profile'}", str(page)],
            check=True, capture_output=True, timeout=200,
        )  # fmt: skip
    (found,), problems = read(tmp_path / "rtl.pdf")
    assert not problems
    assert found.text.split("\n")[:2] == [ARABIC, HEBREW]
    assert found.text.endswith("الدولة: النرويج; البدلة: 74.\nالدولة: فرنسا; البدلة: 43.")
    (found,), _ = read(tmp_path / "ltr.pdf")
    assert "יש להגיש קבלות תוך 21 ימים דרך HP-60 Portal" in found.text
