"""The report: what it says of known rows, and that nothing in it comes from or goes outside."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import StoreError
from service.evaluation.comparison import pareto_front
from service.evaluation.markup import Page
from service.evaluation.papers import COUNTS, NOT_COMPARABLE, differences, figures, is_of
from service.evaluation.report import (
    Report,
    bins_of,
    calibration_error,
    question_lines,
    routed,
    worst,
    write_report,
)
from service.evaluation.rows import Row, commit
from tests.unit.evaluation.evaluating import Engine, Opened, dataset, evaluated, row, rows

RUN = {"common": {}, "datasets": {}, "methods": {}}
HOSTILE = "<script>alert('x')</script> | \n# Who? & `why` [a](http://example.org)"


def lines_of(heading: str, report: Report) -> list[list[str]]:
    """The cells of the tables of a chapter, without their heads."""
    chapter = report.markdown().partition(f"{heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"(?m)^\| .*\n\| ---.*\n((?:\| .*\n)+)", f"{chapter}\n")
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


async def test_an_evaluation_writes_its_report(tmp_path: Path, opened: Opened) -> None:
    file, out = dataset(tmp_path / "d.jsonl", "Rome", "Oslo"), tmp_path / "out"
    opened(Engine())
    traces = tmp_path / "traces"
    asked = {"methods": ["single", "one_retrieval"], "out": out, "trace": traces, "note": "Use 1."}
    _, shown = await evaluated(file, **asked)
    assert f"written: {out / 'report.html'}" in shown
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert "| single ✗ | 2 | 0 | 1.00 | 0.500 \\[0.000, 1.000\\] |" in markdown
    assert "does not beat" in markdown
    assert "error: retrieval: gold text not found literally in" in markdown
    assert "| d | 2 |" in markdown
    assert "| note | Use 1. |" in markdown
    first = (out / "report.html").read_bytes()
    opened(Engine())
    await evaluated(file, **asked)
    assert (out / "report.html").read_bytes() == first  # the same rows, the same report
    await evaluated(file, **{**asked, "methods": ["direct"]})
    assert "| direct |" in (out / "report.md").read_text(encoding="utf-8")


def test_a_folder_without_rows_has_no_report(tmp_path: Path) -> None:
    assert write_report(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    run = {"version": 1, "common": {}, "datasets": {}, "methods": {}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "rows.jsonl").write_bytes(row("m", "1", 1).as_line() + b"\n")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StoreError, match=r"report\.html: cannot be written"):
        write_report(tmp_path)


class Outside(HTMLParser):
    """Collects what a browser would load, follow or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe", "object", "embed", "a", "image", "use"}:
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name.startswith("on") or "href" in name]


def test_the_html_asks_for_nothing_and_runs_nothing() -> None:
    own = [
        row("auto", HOSTILE, 0.0, question=HOSTILE, prediction=HOSTILE, gold=(HOSTILE,)),
        *rows(HOSTILE, [0, 1], dataset=HOSTILE, error=HOSTILE),
        *rows("one_retrieval", [0, 1], dataset=HOSTILE),
        *rows("auto", [0, 1], gold_route="single", chosen_route="single", chosen_by="classifier",
              confidence=0.9),
    ]  # fmt: skip
    known = {"commit": HOSTILE, "machine": HOSTILE}
    run = {"common": {"version": HOSTILE}, "datasets": {}, "methods": {},
           "processes": [known]}  # fmt: skip
    report = Report(run, own)
    html = report.html()
    parser = Outside()
    parser.feed(html)
    assert parser.found == []
    assert "alert('x')</script>" not in html
    assert not re.search(r"@import|url\((?!#)", html)
    assert "default-src 'none'" in html
    markdown = report.markdown()
    assert "<script>" not in re.sub(r"(?m)^    .*", "", markdown)
    assert "\n# Who?" not in markdown


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_lines_cannot_leave_their_block(end: str) -> None:
    page = Page("T")
    page.folded("f", [f"a{end}# b"])
    assert page.markdown().endswith("\n\n    a # b\n")
    assert "<details><summary>f</summary><pre><code>a # b\n</code></pre></details>" in page.html()


def test_the_pareto_front_is_of_those_that_no_other_beats() -> None:
    points = {
        "dear": (9.0, 0.5), "best": (4.0, 0.7), "cheap": (1.0, 0.3), "same": (1.0, 0.3),
        "worse": (1.0, 0.2), "middle": (2.0, 0.3),
    }  # fmt: skip
    assert pareto_front(points) == ["cheap", "same", "best"]
    assert pareto_front({}) == []


async def test_without_the_extra_there_are_rows_and_no_report(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.core.extras.importlib.util.find_spec", lambda name: None)
    opened(Engine())
    _, shown = await evaluated(dataset(tmp_path / "d.jsonl", "Rome"), out=tmp_path / "out")
    assert "the report needs scipy, markdown_it; run: pip install '.[evaluate]'" in shown
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"rows.jsonl", "run.json"}


def test_what_the_papers_say_is_complete_and_in_range() -> None:
    known = figures()
    assert len(known) > 80
    assert {figure.paper for figure in known} == {
        "Adaptive-RAG", "HANRAG", "Auto-RAG", "DRAGIN", "EfficientRAG",
    }  # fmt: skip
    shares = [score for f in known for name, score in f.scores.items() if name not in COUNTS]
    assert all(0 < score < 1 for score in shares)
    assert {name for f in known for name in f.scores} >= COUNTS.keys()
    (own,) = [
        f for f in known if (f.called, f.table, f.dataset) == ("HANRAG", "Table 2", "musique")
    ]
    assert own.scores == pytest.approx({"em": 0.298, "f1": 0.366, "accuracy": 0.432})
    assert (own.table, own.sample) == ("Table 2", 500)
    adaptive = {f.method: f for f in known if (f.paper, f.dataset) == ("Adaptive-RAG", "nq")}
    assert adaptive.keys() == {"no_retrieval", "one_retrieval", "ircot", "auto"}
    assert {figure.model for figure in adaptive.values()} == {"FLAN-T5-XL"}
    assert adaptive["auto"].scores == adaptive["one_retrieval"].scores  # it chose that for all


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("report_2wikimultihopqa", "2wikimultihopqa", True), ("hotpotqa_dev", "hotpotqa", True),
        ("nq_open", "nq", True), ("nq", "nq", True), ("squad", "nq", False),
        ("webquestions", "nq", False), ("2wikimultihopqa", "musique", False),
    ],
)  # fmt: skip
def test_datasets_go_by_several_names(ours: str, theirs: str, same: bool) -> None:
    figure = next(figure for figure in figures() if figure.dataset == theirs)
    assert is_of(figure, ours) == same


def test_figures_of_another_setting_are_not_comparable() -> None:
    figure = next(figure for figure in figures() if figure.dataset == "musique")
    unknown = "settings (no bundle fixes them)"

    def run_by(model: str) -> dict[str, Any]:
        engines = {"e": {"kind": "vllm", "model": model}}
        settings = {"roles": {"reader": {"engine": "e"}}, "engines": engines}
        corpus = {"collection": {"name": figure.corpus}}
        return {"common": {"settings": settings}, "datasets": {"musique": corpus}}

    same = run_by(f"meta/{figure.model}"), "musique", figure.method
    assert differences(figure, *same, figure.sample) == [unknown]
    assert differences(figure, run_by("smollm2"), *same[1:], 20) == [
        f"model ({figure.model})", "sample (500 questions)", unknown,
    ]  # fmt: skip
    own = rows("single/one_retrieval", [0, 1], dataset="musique")
    variant = rows("one_retrieval@top_k=5", [0, 1], dataset="musique")
    told = lines_of("papers' figures", Report(RUN, [*own, *variant]))
    assert {tuple(line[:2]) for line in told} == {
        ("musique", "single/one\\_retrieval"), ("musique", "one\\_retrieval@top\\_k=5"),
    }  # fmt: skip
    assert "variant (top\\_k=5)" in told[-1][4]
    line = told[0]
    assert "F1: 0.228; 0.500 \\[0.000, 1.000\\]" in line[2]
    assert line[4].startswith(NOT_COMPARABLE)
    assert lines_of("papers' figures", Report(RUN, rows("auto", [1]))) == []


def test_routes_are_confused_and_confidence_is_calibrated() -> None:
    def chosen(id: str, route: str, confidence: float, by: str = "classifier") -> Row:
        return row("auto", id, 1, gold_route="single", chosen_route=route, chosen_by=by,
                   confidence=confidence)  # fmt: skip

    own = [chosen("1", "single", 0.95), chosen("2", "single", 1.0), chosen("3", "direct", 0.95),
           chosen("4", "single", 0.55), chosen("5", "direct", 0.5, "request")]  # fmt: skip
    assert [each.id for each in routed([*own, own[0]])] == ["1", "2", "3", "4"]
    bins = bins_of(routed(own))
    assert [(count, right) for count, _, right in bins] == [(1, 1), (3, pytest.approx(2 / 3))]
    assert calibration_error(bins) == pytest.approx((0.45 + 3 * (2.9 / 3 - 2 / 3)) / 4)
    table = lines_of("Routes", Report(RUN, own))
    assert table[:2] == [["direct", "0", "0"], ["single", "1", "3"]]
    assert lines_of("Routes", Report(RUN, rows("auto", [1]))) == []


def test_the_worst_questions_come_first(tmp_path: Path) -> None:
    own = [
        *rows("a", [1, 0, 0, 0.5]), *rows("b", [1, 0, 0, 0]),
        row("a", "9", 0, prompt_tokens=90), row("b", "9", 0),
    ]  # fmt: skip
    assert [group[0].id for group in worst(own)] == ["9", "1", "2", "3"]
    assert next(question_lines(own[1:2], None)) == "gold: x"
    (tmp_path / "d" / "a").mkdir(parents=True)
    (tmp_path / "d" / "a" / "9.jsonl").write_bytes(b'{"trace": 0}\n')
    markdown = Report(RUN, own, tmp_path).markdown()
    assert markdown.count("?**\n\n    gold: x\n") == 4
    assert "9.jsonl:1: is not the first line of a trace" in markdown


async def test_a_trace_of_another_run_explains_nothing(tmp_path: Path, opened: Opened) -> None:
    file, traces = dataset(tmp_path / "d.jsonl", "Oslo"), tmp_path / "traces"
    for out in ("first", "second"):
        opened(Engine())
        await evaluated(file, out=tmp_path / out, trace=traces)
    write_report(tmp_path / "first", traces)
    files = [tmp_path / out / "report.md" for out in ("first", "second")]
    told = [file.read_text(encoding="utf-8") for file in files]
    assert ["this trace is of another run" in markdown for markdown in told] == [True, False]
    assert ["error: retrieval: gold text not found" in markdown for markdown in told] == [
        False,
        True,
    ]


def test_code_that_is_in_no_working_tree_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.evaluation.rows._GIT", ("git", "-C", str(tmp_path)))
    assert commit() is None
    monkeypatch.setattr("service.evaluation.rows._GIT", ("no-such-program",))
    assert commit() is None
