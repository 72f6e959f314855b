"""The blocks of a report, and their rendering as HTML and Markdown.

Texts from questions, answers and settings are escaped in both formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Cells = Sequence[str]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading. `level` is 2 for a chapter and 3 for a section."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first column names the row. The other columns are right-aligned if `numbers` is
    set."""

    head: Cells
    rows: Sequence[Cells]
    numbers: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """A self-contained SVG. In Markdown only its caption is written."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Lines that are hidden until the reader opens the title."""

    title: str
    lines: Sequence[str]


Block = Heading | Text | Table | Plot | Folded

_LONG: Final = 30  # number of characters from which a cell may be wrapped
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2em auto;
  max-width: 75em; padding: 0 1em; }
h1, h2, h3 { line-height: 1.2; margin: 1.6em 0 .5em; }
.wide { overflow-x: auto; width: max-content; max-width: calc(100vw - 3em); }
@media print { .wide { overflow: visible; max-width: none; } }
.wide + .wide { margin-top: 1em; }
.wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: #fff; }
table { border-collapse: collapse; font-size: .9em; }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; vertical-align: top;
  text-align: left; white-space: nowrap; }
th, td.long { white-space: normal; }
td.long { min-width: 14em; }
.numbers td + td, .numbers th + th { text-align: right; }
figure { margin: 1em 0; max-width: 50em; }
figure svg { width: 100%; height: auto; }
figcaption { font-size: .9em; color: #555; }
details { margin: .5em 0; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .7em; font-size: .85em; }
"""


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """Return the report as one HTML file without external references."""
    body = "\n".join(map(_html, blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
        case Text():
            return f"<p>{escape(block.text)}</p>"
        case Table():
            head = _row(block.head, "th")
            rows = "\n".join(_row(cells, "td") for cells in block.rows)
            kind = ' class="numbers"' if block.numbers else ""
            return (
                f'<div class="wide"><table{kind}>\n<thead>{head}</thead>\n'
                f"<tbody>\n{rows}\n</tbody>\n</table></div>"
            )
        case Plot():
            caption = f"<figcaption>{escape(block.caption)}</figcaption>"
            return f"<figure>{block.svg}{caption}</figure>"
        case Folded():
            lines = escape("\n".join(block.lines))
            return f"<details><summary>{escape(block.title)}</summary><pre>{lines}</pre></details>"


def _row(cells: Cells, tag: str) -> str:
    return "<tr>" + "".join(_cell(cell, tag) for cell in cells) + "</tr>"


def _cell(cell: str, tag: str) -> str:
    kind = ' class="long"' if tag == "td" and len(cell) > _LONG else ""
    return f"<{tag}{kind}>{escape(cell)}</{tag}>"


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    """Return the report in Markdown, which refers to the HTML report for plots."""
    return "\n\n".join([f"# {_plain(title)}", *map(_markdown, blocks)]) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_plain(block.text)}"
        case Text():
            return _plain(block.text)
        case Table():
            rule = ["---", *["---:" if block.numbers else "---"] * (len(block.head) - 1)]
            return "\n".join(_line(cells) for cells in (block.head, rule, *block.rows))
        case Plot():
            return f"{_plain(block.caption)} (The plot is in report.html.)"
        case Folded():
            return "\n".join([f"**{_plain(block.title)}**", "", *map(_quoted, block.lines)])


def _line(cells: Cells) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _quoted(line: str) -> str:
    return f"    {' '.join(line.splitlines())}"


def _plain(text: str) -> str:
    """Return the text on one line, with the markup of Markdown and HTML escaped."""
    line = " ".join(text.split())
    for sign in "\\`*_|[]":
        line = line.replace(sign, f"\\{sign}")
    return line.replace("&", "&amp;").replace("<", "&lt;")
