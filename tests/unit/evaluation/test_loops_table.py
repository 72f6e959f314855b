"""The table of the loops: made of rows, and put in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.evaluation.datasets import load_dataset
from tests.benchmarks.loops_table import (
    DOCUMENT,
    HEADING,
    REPORT,
    SETS,
    note_of,
    section_of,
    sets_of,
    with_section,
)
from tests.unit.evaluation.test_report_document import rows


def test_a_line_for_each_method_without_its_variants() -> None:
    made = [
        *rows("one_retrieval", [1, 0, 1], llm_calls=1, wall_ms=1_200_000.0),
        *rows("one_retrieval@samples=8", [1, 1, 1], llm_calls=8),
        *rows("flare", [0, 0, 1], llm_calls=8),
        *rows("one_retrieval", [1, 1], dataset="nq"),
    ]
    section = section_of(made, concurrency=2)
    assert section.startswith(HEADING)
    told = " ".join(section.split())
    assert "on 3 questions" in told
    assert "0.5 hours in all" in told
    assert "in the variants `one_retrieval@samples=8`" in told
    assert "--out OUT --questions 3 --concurrency 2 --write" in told
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert table[0] == "| method | d | NQ | LLM calls | retrievals | tokens | seconds |"
    assert [line.split("|")[1].strip() for line in table[2:]] == ["flare", "one\\_retrieval"]
    assert "✗" in table[2]
    assert "✗" not in table[3]
    assert "| – |" in table[2]


def test_the_section_takes_the_place_of_the_one_before() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.count(HEADING) == 1
    once = with_section(f"{text}\n## After\n", f"{HEADING}\nmade before\n")
    assert f"{HEADING}\nmade before\n\n## 10. " in once
    assert once.endswith("\n## After\n")
    twice = with_section(once, f"{HEADING}\nmade now\n\n")
    assert twice == once.replace("made before", "made now")
    assert with_section("a\n", f"{HEADING}x") == f"a\n{HEADING}x\n"


def test_the_sets_that_only_measure_are_taken_with_the_count_of_their_use() -> None:
    assert not set(sets_of(None, None)) & set(REPORT)
    assert note_of(sets_of(None, None), None) is None
    asked = sets_of(None, 2)
    assert asked == ["squad", "nq", *REPORT]
    assert note_of(asked, 2) == (
        "Measurement 2 of at most 3 of report_hotpotqa, report_2wikimultihopqa, report_musique."
    )
    assert sets_of(["report_musique"], 1) == ["report_musique"]
    with pytest.raises(ValueError, match="report_musique: say by --report"):
        sets_of(["squad", "report_musique"], None)


@pytest.mark.parametrize("name", [name for name, source in SETS.items() if source.questions])
def test_every_set_has_its_gold_passages_in_its_own_corpus(name: str, shared_data: Path) -> None:
    source = SETS[name]
    lines = (shared_data / source.corpus / "corpus.jsonl").read_text(encoding="utf-8")
    stored = {json.loads(line)["id"] for line in lines.splitlines()}
    questions = load_dataset(shared_data / str(source.questions) / "questions.jsonl")
    assert all(question.supporting <= stored for question in questions)
    assert {question.route for question in questions} <= {None, source.route}
