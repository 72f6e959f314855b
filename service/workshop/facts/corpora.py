"""Read the passages and the people's questions that the recipes use from one data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from service.workshop.facts.splits import is_held_out

SOURCES = ("2wikimultihopqa", "musique", "squad")


class Paragraph(NamedTuple):
    """One paragraph of Wikipedia, with its source."""

    id: str
    title: str
    text: str
    source: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.title)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def load_passages(data: Path, *, held_out: bool | None = False) -> list[Paragraph]:
    """Return the passages of the three corpora. `held_out=None` returns both sides of the split."""
    passages = [
        Paragraph(row["id"], row["title"], row["text"].strip(), source)
        for source in SOURCES
        for row in read_lines(data / source / "corpus.jsonl")
    ]
    return [p for p in passages if held_out is None or p.held_out is held_out]


class RealQuestion(NamedTuple):
    """A question that people wrote. `row` is its line, with the fields of its dataset."""

    question: str
    source: str
    row: dict[str, Any]

    @property
    def held_out(self) -> bool:
        return is_held_out(self.question)


QUESTION_FILES = {
    "musique": "musique/questions.jsonl",
    "nq_open": "nq_open/dev.jsonl",
    "squad": "squad/questions.jsonl",
    "webquestions": "webquestions/questions.jsonl",
    "strategyqa": "strategyqa/questions.jsonl",
    "commonsenseqa": "commonsenseqa/questions.jsonl",
}


def load_questions(data: Path, source: str, *, held_out: bool | None = False) -> list[RealQuestion]:
    """Return the people's questions of one set. `held_out=None` returns both sides of the split."""
    rows = read_lines(data / QUESTION_FILES[source])
    questions = [RealQuestion(row["question"].strip(), source, row) for row in rows]
    return [q for q in questions if held_out is None or q.held_out is held_out]
