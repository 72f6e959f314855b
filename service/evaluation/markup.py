"""The Markdown and HTML of a report, without scripts and external references.

Needs the extra `evaluate`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from markdown_it import MarkdownIt

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2em auto;
  max-width: 75em; padding: 0 1em; }
h1, h2, h3 { line-height: 1.2; margin: 1.6em 0 .5em; }
.wide { overflow-x: auto; width: max-content; max-width: calc(100vw - 3em); margin-top: 1em; }
@media print { .wide { overflow: visible; max-width: none; } }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
table { border-collapse: collapse; font-size: .9em; }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; vertical-align: top;
  text-align: left; }
td { max-width: 30em; overflow-wrap: anywhere; }
td:first-child, td[style] { white-space: nowrap; }
details { margin: .5em 0; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .7em; font-size: .85em; }
"""
# Texts are escaped, so these tags are ours alone.
_FOLDED: Final = re.compile(r"<p><strong>(.*?)</strong></p>\n(<pre>.*?</pre>)", re.DOTALL)


class Page:
    """A document, which is written as Markdown and rendered as HTML from it.

    Every text is escaped, so that questions, answers and settings cannot change its structure.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"# {_plain(title)}"]

    def heading(self, text: str, level: int = 2) -> None:
        """Begin a chapter, or at level 3 a section."""
        self._parts.append(f"{'#' * level} {_plain(text)}")

    def text(self, text: str) -> None:
        self._parts.append(_plain(text))

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
    ) -> None:
        """Add a table whose first column names the row. The others are right-aligned if `numbers`
        is set."""
        rule = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
        lines = [rule, *([_plain(cell) for cell in row] for row in rows)]
        cells = [[_plain(cell) for cell in head], *lines]
        self._parts.append("\n".join(f"| {' | '.join(row)} |" for row in cells))

    def folded(self, title: str, lines: Sequence[str]) -> None:
        """Add lines that HTML hides until the reader opens the title."""
        quoted = "\n".join(f"    {' '.join(line.splitlines())}" for line in lines)
        self._parts.append(f"**{_plain(title)}**\n\n{quoted}")

    def markdown(self) -> str:
        return "\n\n".join(self._parts) + "\n"

    def html(self) -> str:
        """Return one HTML file without external references."""
        title = escape(self._title)
        body = "\n".join(map(self._rendered, self._parts))
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'\">\n"
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n"
            "</html>\n"
        )

    def _rendered(self, part: str) -> str:
        html = MarkdownIt("commonmark", {"html": False}).enable("table").render(part)
        html = html.replace("<table>", '<div class="wide"><table>')
        html = html.replace("</table>", "</table></div>")
        return _FOLDED.sub(r"<details><summary>\1</summary>\2</details>", html)


def _plain(text: str) -> str:
    """Return the text on one line, with the markup of Markdown and HTML escaped."""
    line = " ".join(text.split())
    for sign in "\\`*_|[]":
        line = line.replace(sign, f"\\{sign}")
    return line.replace("&", "&amp;").replace("<", "&lt;")
