"""Every method on two questions of each set by the default model: one command, which is killed and
given again."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from service.core.settings import load_settings
from service.evaluation.methods import ALL, known_methods
from service.evaluation.report import MARK
from service.evaluation.rows import Row, read_rows
from service.retrieval.ingest.pipeline import ingest
from service.runtime import open_runtime
from tests.benchmarks.loops_table import DEVELOPMENT, FACTS, rows_of
from tests.conftest import need

pytestmark = pytest.mark.timeout(600)
# The sets that only measure are left alone.
SETS: Final = FACTS | DEVELOPMENT
COLLECTION: Final = "pool"
QUESTIONS: Final = 2
OTHERS: Final = 4  # passages of each set beside those of its questions
UNABLE: Final = "searcher"  # it is for models that were trained to search
VARIANT: Final = "one_retrieval@samples=2"
AT_ONCE: Final = 4
KILLED_AFTER: Final = 8  # rows
# Few calls, since CI's time is short, and the time limits of a busy machine.
SETTINGS: Final = """
[hanrag]
fetch_k = 2
[limits]
max_llm_calls = 6
[retrieval]
timeout_s = 60
[engines.default]
timeout_s = 300
"""


@dataclass(frozen=True)
class Evaluated:
    """The folder of the evaluation, its rows at the kill, and what the second command said."""

    out: Path
    before: bytes
    shown: str

    @property
    def rows(self) -> list[Row]:
        return read_rows(self.out)


def small(data: Path, folder: Path) -> tuple[list[Path], Path]:
    """Files with questions of each set, and one with their passages and a few others."""
    files, passages = [], []
    for name, source in SETS.items():
        asked = rows_of(data, source)[:QUESTIONS]
        files.append(folder / f"{name}.jsonl")
        write(files[-1], asked)
        (own_corpus,) = source.corpora
        lines = (data / own_corpus / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
        corpus = [json.loads(line) for line in lines]
        wanted = {gold for row in asked for gold in row["supporting_passage_ids"]}
        own = [passage for passage in corpus if passage["id"] in wanted]
        assert len(own) == len(wanted)
        passages += own + random.Random(0).sample(corpus, OTHERS)
    write(folder / "corpus.jsonl", list({row["id"]: row for row in passages}.values()))
    return files, folder / "corpus.jsonl"


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


async def stored(corpus: Path, config: Path) -> None:
    async with open_runtime(load_settings(config)) as runtime:
        await runtime.retrieval.collections.create(COLLECTION)
        await ingest([corpus], COLLECTION, runtime.retrieval.collections)


def killed(command: Sequence[str], rows: Path) -> bytes:
    """Kill the command after a few rows, and return the whole lines that it left."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while not rows.exists() or rows.read_bytes().count(b"\n") < KILLED_AFTER:
                assert process.poll() is None
                time.sleep(0.02)
        finally:
            process.kill()
    content = rows.read_bytes()
    return content[: content.rfind(b"\n") + 1]


@pytest.fixture(scope="module")
def evaluated(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    need("tantivy", "qdrant_edge")
    folder = tmp_path_factory.mktemp("every_method")
    files, corpus = small(shared_data, folder)
    config = folder / "revelator.toml"
    config.write_text(f'data_dir = "{folder}/data"\n{SETTINGS}', encoding="utf-8")
    anyio.run(stored, corpus, config)
    out = folder / "out"
    command = [
        sys.executable, "-m", "service", "evaluate", *map(str, files),
        "--methods", f"{ALL},{VARIANT}", "--collection", COLLECTION, "--out", str(out),
        "--config", str(config), "--concurrency", str(AT_ONCE), "--timeout-s", "300",
        "--top-k", "1", "--max-steps", "2",
        *(word for name, own in SETS.items() for word in ("--route-of", f"{name}={own.route}")),
    ]  # fmt: skip
    before = killed(command, out / "rows.jsonl")
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Evaluated(out, before, done.stdout)


def test_there_is_a_row_for_each_question_by_each_method(evaluated: Evaluated) -> None:
    assert re.findall(r"skipped: method (\S+):", evaluated.shown) == [UNABLE]
    methods = {*known_methods(), VARIANT} - {UNABLE}
    assert {(row.dataset, row.method) for row in evaluated.rows} == {
        (name, method) for name in SETS for method in methods
    }
    assert len(evaluated.rows) == len(SETS) * len(methods) * QUESTIONS
    assert [row.error for row in evaluated.rows if row.error] == []
    assert all(row.llm_calls > 0 for row in evaluated.rows if row.answered)
    assert any(row.scores["f1"] > 0.5 for row in evaluated.rows)


def test_what_had_a_row_was_not_asked_again(evaluated: Evaluated) -> None:
    kept = evaluated.before.count(b"\n")
    assert kept >= KILLED_AFTER
    assert f"{kept} of {len(evaluated.rows)} questions already have a result" in evaluated.shown
    content = (evaluated.out / "rows.jsonl").read_bytes()
    assert content.startswith(evaluated.before)
    assert content.count(b"\n") == len(evaluated.rows)


def test_the_report_has_every_chapter(evaluated: Evaluated) -> None:
    markdown = (evaluated.out / "report.md").read_text(encoding="utf-8")
    html = (evaluated.out / "report.html").read_text(encoding="utf-8")
    for chapter in (
        "Scores", "Accuracy against cost", "Equal budgets", "Routes", "Provenance",
    ):  # fmt: skip
        assert f"\n## {chapter}\n" in markdown
        assert f"<h2>{chapter}</h2>" in html
    for method in set(known_methods()) - {UNABLE}:
        assert f"<td>{method}" in html
    assert re.search(rf"\n\| \w+ {MARK} \|", markdown), "two questions are no proof for a loop"
