"""README's table of the loops: made of rows, and put in its place."""

from __future__ import annotations

from tests.benchmarks.loops_table import HEADING, README, section_of, with_section
from tests.unit.evaluation.test_report_document import rows


def test_a_line_for_each_method_without_its_variants() -> None:
    made = [
        *rows("one_retrieval", [1, 0, 1], llm_calls=1, wall_ms=1_200_000.0),
        *rows("one_retrieval@samples=8", [1, 1, 1], llm_calls=8),
        *rows("flare", [0, 0, 1], llm_calls=8),
        *rows("one_retrieval", [1, 1], dataset="e"),
    ]
    section = section_of(made, concurrency=2)
    assert section.startswith(HEADING)
    assert "over 3 questions" in section
    assert "0.5 hours in all" in section
    assert "spend as `one_retrieval@samples=8`" in section
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert table[0] == "| method | d | e | LLM calls | retrievals | tokens | seconds |"
    assert [line.split("|")[1].strip() for line in table[2:]] == ["one\\_retrieval", "flare"]
    assert "✗" in table[3]
    assert "✗" not in table[2]
    assert "| – |" in table[3]


def test_the_section_takes_the_place_of_the_one_before() -> None:
    readme = README.read_text(encoding="utf-8")
    once = with_section(readme, f"{HEADING}\nmade before\n\n")
    assert once.index(HEADING) < once.index("## HTTP\n")
    twice = with_section(once, f"{HEADING}\nmade now\n\n")
    assert twice == once.replace("made before", "made now")
    assert with_section(twice, "") == with_section(readme, "")
