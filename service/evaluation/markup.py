"""The Markdown and HTML of a report, and its SVG plots, without scripts and external references.

Needs the extra `evaluate`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final
from xml.etree import ElementTree  # parses only pygal's output  # nosec B405

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
figure { margin: 1em 0; max-width: 50em; }
figure svg { width: 100%; height: auto; }
figcaption { font-size: .9em; color: #555; }
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
        self._plots: dict[str, str] = {}

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

    def plot(self, svg: str, caption: str) -> None:
        """Add a plot. In Markdown, only its caption is written."""
        self.text(f"{caption} (The plot is in report.html.)")
        self._plots[self._parts[-1]] = svg

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
        if part in self._plots:
            caption = html.removeprefix("<p>").removesuffix("</p>\n")
            return f"<figure>{self._plots[part]}<figcaption>{caption}</figcaption></figure>\n"
        html = html.replace("<table>", '<div class="wide"><table>')
        html = html.replace("</table>", "</table></div>")
        return _FOLDED.sub(r"<details><summary>\1</summary>\2</details>", html)


def _plain(text: str) -> str:
    """Return the text on one line, with the markup of Markdown and HTML escaped."""
    line = " ".join(text.split())
    for sign in "\\`*_|[]":
        line = line.replace(sign, f"\\{sign}")
    return line.replace("&", "&amp;").replace("<", "&lt;")


_SVG: Final = "http://www.w3.org/2000/svg"
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f3c8d", "#666666",
    "#000000", "#a5aa99", "#3969ac", "#b8860b", "#e73f74", "#4b4b8f", "#80ba5a", "#994e00",
    "#11a579", "#cf1c90", "#f97b72", "#008695", "#9b7fd4", "#5f4690", "#c2a300", "#1d6996",
)  # fmt: skip
_LABELS: Final = 100  # number of series whose labels have the dark colour
_NEAR: Final = (0.025, 0.04)  # fraction of width and height within which points share a label
Point = tuple[float, float]


def pareto_front(points: Mapping[str, Point]) -> list[str]:
    """Return the names of the points that no other point dominates, in order of cost.

    A point is (cost, score). A point dominates another if it differs, costs at most as much and
    scores at least as much.
    """
    ordered = sorted(points.items(), key=lambda item: (item[1][0], -item[1][1], item[0]))
    front: list[str] = []
    best: Point | None = None
    for name, point in ordered:
        if best is None or point[1] > best[1] or point == best:
            front.append(name)
            best = point
    return front


def cost_plot(points: Mapping[str, Point], cost: str, score: str) -> str:
    """Return an SVG of each method's score over its cost, with the Pareto front as a line.

    Points are labelled with the numbers of the legend.
    """
    pygal = _opened()
    front = pareto_front(points)
    top = 1.05 * max(0.1, *(value for _, value in points.values()))
    right = 1.05 * max(value for value, _ in points.values()) or 1
    chart = pygal.XY(
        **_options(), stroke=False, x_title=cost, y_title=score, range=(0, top), xrange=(0, right),
        print_labels=True,
    )  # fmt: skip
    labels = point_labels(list(points.values()), (_NEAR[0] * right, _NEAR[1] * top))
    for number, (name, point) in enumerate(points.items(), 1):
        value = {"value": point, "label": labels[number - 1]}
        chart.add(f"{number} {name}{' *' if name in front else ''}", [value])
    line = [points[name] for name in front]
    chart.add("Pareto front", line, stroke=True, show_dots=False)
    return _svg(chart)


def point_labels(points: Sequence[Point], near: Point) -> list[str]:
    """Return the label of each point.

    The label contains the point's number, from 1, and the numbers of later points that are closer
    than `near` in both directions. Those later points have an empty label.
    """
    labels = [""] * len(points)
    first: list[int] = []
    for own, point in enumerate(points):
        close = (
            other for other in first
            if all(abs(a - b) < most for a, b, most in zip(points[other], point, near, strict=True))
        )  # fmt: skip
        other = next(close, None)
        if other is None:
            first.append(own)
            labels[own] = str(own + 1)
        else:
            labels[other] += f", {own + 1}"
    return labels


def calibration_plot(bins: Sequence[Point]) -> str:
    """Return an SVG of the router's accuracy over its confidence. A calibrated router is on the
    diagonal."""
    pygal = _opened()
    chart = pygal.XY(
        **_options(), range=(0, 1), xrange=(0, 1), x_title="confidence", y_title="accuracy"
    )
    chart.add("calibrated", [(0, 0), (1, 1)], show_dots=False)
    chart.add("router", list(bins))
    return _svg(chart)


def _opened() -> Any:
    """Import pygal and remove the module finder that it adds for its maps.

    The finder has no `find_spec`, so every later import in the process would cause a warning.
    """
    before = list(sys.meta_path)
    import pygal  # noqa: PLC0415

    added = [finder for finder in sys.meta_path if finder not in before]
    for finder in added:
        if type(finder).__module__ == pygal.__name__:
            sys.meta_path.remove(finder)
    return pygal


def _options() -> dict[str, Any]:
    from pygal.style import Style  # noqa: PLC0415

    style = Style(
        background="#ffffff", plot_background="#ffffff", colors=_COLOURS, opacity="1",
        font_family="system-ui, sans-serif", label_font_size=12, major_label_font_size=12,
        title_font_size=13, legend_font_size=12, transition="0s", guide_stroke_color="#dddddd",
        major_guide_stroke_color="#cccccc", guide_stroke_dasharray="1",
        major_guide_stroke_dasharray="1", value_colors=("#222222",) * _LABELS, value_font_size=6,
    )  # fmt: skip
    return {
        "js": (), "style": style, "width": 800, "height": 460, "dots_size": 5,
        "truncate_legend": -1, "disable_xml_declaration": True,
    }  # fmt: skip


def _svg(chart: Any) -> str:
    """Render the chart without its scripts, which only serve tooltips.

    Its accessible name, which pygal sets to its own, is made of the titles of its axes.
    Its styles refer to an id that pygal draws at random, which is replaced so that the same rows
    give the same report.
    """
    content = chart.render(is_unicode=True).replace(chart.uuid, "")
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    chart.uuid = f"plot-{digest}"
    root = ElementTree.fromstring(chart.render())  # as above  # nosec B314
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag == f"{{{_SVG}}}script"]:
            parent.remove(child)
    root.set("role", "img")
    for title in root.findall(f"{{{_SVG}}}title"):
        title.text = f"{chart.config.y_title} over {chart.config.x_title}"
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")
