"""Assemble a report and write it to the evaluation's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from service import __version__
from service.core.errors import StoreError
from service.core.files import write_whole
from service.evaluation.document.blocks import (
    Block,
    Folded,
    Heading,
    Table,
    Text,
    as_html,
    as_markdown,
)
from service.evaluation.document.published import Setting, published_blocks
from service.evaluation.document.questions import question_blocks
from service.evaluation.document.results import (
    budget_blocks,
    by_dataset,
    cost_blocks,
    judged_loops,
    score_blocks,
)
from service.evaluation.document.robustness import robustness_blocks
from service.evaluation.document.routing import routing_blocks
from service.evaluation.poison import ROBUSTNESS
from service.evaluation.rows import Row, read_rows
from service.evaluation.run_folder import read_run

HTML: Final = "report.html"
MARKDOWN: Final = "report.md"
TITLE: Final = "Evaluation"
_DIGEST_SHOWN: Final = 16


def write_report(folder: Path, traces: Path | None = None) -> list[Path]:
    """Write the report of all rows of a folder and return its files, or none if there are no rows.
    Blocking.

    Raises StoreError if the folder cannot be read or written.
    """
    run, rows = read_run(folder), read_rows(folder)
    if run is None or not rows:
        return []
    attacked = read_rows(folder / ROBUSTNESS)
    blocks = list(report_blocks(run, rows, traces, attacked))
    files = {folder / HTML: as_html(TITLE, blocks), folder / MARKDOWN: as_markdown(TITLE, blocks)}
    for path, content in files.items():
        try:
            write_whole(path, content)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from None
    return list(files)


def report_blocks(
    run: Mapping[str, Any],
    rows: Sequence[Row],
    traces: Path | None,
    attacked: Sequence[Row] = (),
) -> Iterator[Block]:
    """Yield the chapters from the content of `run.json`, its rows, and the rows under attack."""
    datasets = by_dataset(rows)
    settings = {name: _setting(run, name) for name in datasets}
    judged = judged_loops(datasets)
    yield from score_blocks(datasets, judged)
    yield from cost_blocks(datasets)
    yield from budget_blocks(judged)
    yield from robustness_blocks(datasets, attacked)
    yield from published_blocks(datasets, settings)
    yield from routing_blocks(rows)
    yield from question_blocks(rows, traces)
    yield from _provenance(run)


def engines_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine of each role, as far as `run.json` contains it."""
    settings = run["common"].get("settings") or {}
    engines, found = settings.get("engines") or {}, {}
    for role, own in (settings.get("roles") or {}).items():
        if own:
            engine = engines.get(own.get("engine")) or {}
            model = own.get("adapter") or own.get("model") or engine.get("model")
            named = model or "the engine's own model"
            found[role] = f"{own.get('engine')} ({engine.get('kind', 'unknown')}): {named}"
    return found


def judged_by(judge: Mapping[str, Any]) -> str:
    """Return the judging engine and the version of the prompt as text."""
    model = judge["model"] or "the engine's own model"
    return f"{judge['engine']} ({judge['kind']}): {model}, prompt version {judge['version']}"


def _setting(run: Mapping[str, Any], dataset: str) -> Setting:
    known = run["datasets"].get(dataset) or {}
    collection = known.get("collection") or {}
    return Setting(list(engines_of(run).values()), _corpus(collection), 0)


def _corpus(collection: Mapping[str, Any]) -> str:
    count = collection.get("passages")
    passages = f", {count:,} passages" if isinstance(count, int) else ""
    return f"{collection.get('name', 'unknown')}{passages}"


def _provenance(run: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the chapter on the origin of the rows."""
    common, processes = run["common"], run.get("processes", [])
    rows = [
        ["version", str(common.get("version") or f"{__version__}, asking a server")],
        *(
            ["asked by", f"commit {own['commit'] or 'unknown'}, on {own['machine']}"]
            for own in processes
        ),
        *([f"role {role}", engine] for role, engine in engines_of(run).items()),
        *([["LLM judge", judged_by(common["judge"])]] if "judge" in common else []),
        *([["note", common["note"]]] if "note" in common else []),
        ["digest of settings, request and scoring", run["digest"]],
    ]
    yield Heading("Provenance")
    if len(processes) > 1:
        yield Text("Several commits or machines asked, whose times are not comparable.")
    yield Table(["", ""], rows, numbers=False)
    yield Table(
        ["dataset", "questions in the file", "SHA-256", "collection"],
        [
            [name, str(data.get("questions", "")), str(data.get("sha256", ""))[:_DIGEST_SHOWN],
             _corpus(data.get("collection") or {})]
            for name, data in run["datasets"].items()
        ],
        numbers=False,
    )  # fmt: skip
    if "judge" in common:
        yield Folded("Prompt of the LLM judge", common["judge"]["prompt"].split("\n"))
    lines = json.dumps(common, ensure_ascii=False, indent=1).split("\n")
    yield Folded("Settings, request and scoring", lines)
