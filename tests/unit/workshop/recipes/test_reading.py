"""What the reader learns from."""

from __future__ import annotations

import json
import random
from pathlib import Path

from service.workshop.recipes.reading import groups_of, places, without
from service.workshop.splits import is_held_out
from tests.unit.workshop.recipes.rows import write_questions


def test_answers_are_whole_words_of_the_passage_and_a_third_has_none(tmp_path: Path) -> None:
    write_questions(tmp_path, None, 400)
    groups = groups_of(tmp_path, held_out=False, rng=random.Random(0))
    rows = [row for group in groups for row in group]
    for row in rows:
        assert (row.kind == "span") == bool(row.spans)
        for start, end in row.spans:
            assert not row.text[start - 1].isalnum()
            assert not row.text[end : end + 1].isalnum()
    none = sum(all(row.kind == "none" for row in group) for group in groups) / len(groups)
    assert 0.2 < none < 0.4
    assert any(len(group) > 1 for group in groups)
    assert all(not is_held_out(row.title) for row in rows)
    held_out = groups_of(tmp_path, held_out=True, rng=random.Random(0))
    assert held_out
    assert all(is_held_out(row.title) and is_held_out(row.question) for (row,) in held_out)


def test_yes_no_and_unanswerable_questions(tmp_path: Path) -> None:
    title = next(t for n in range(9) if not is_held_out(t := f"Entry {n}"))
    passages = [{"id": f"p{n}", "title": title, "text": f"Text {n}."} for n in range(3)]
    asked = [t for n in range(40) if not is_held_out(t := f"Is it so, {n}?")][:20]
    questions = [
        {"question": text, "answers": [("Yes", "no")[n % 2]], "supporting_passage_ids": ["p0"],
         "passage_ids": ["p0", "p1"], "answerable": n < 18}
        for n, text in enumerate(asked)
    ]  # fmt: skip
    for name, rows in (("corpus", passages), ("questions", questions)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    groups = groups_of(tmp_path, held_out=False, rng=random.Random(0))
    found = {row.question: (row.kind, row.text) for (row,) in groups}
    assert {found[asked[n]] for n in range(18)} == {
        ("yes", "Text 0."), ("no", "Text 0."), ("none", "Text 1."),
    }  # fmt: skip
    assert {found[asked[n]] for n in (18, 19)} == {("none", "Text 0.")}


def test_places_and_what_is_left_without_them() -> None:
    text = "Anna lives in Rome. Romeo does not. Dr. Bo moved to Rome (Italy) later."
    found = places(["Rome"], text)
    assert [text[a:b] for a, b in found] == ["Rome", "Rome"]
    assert without(text, found) == "Romeo does not."
