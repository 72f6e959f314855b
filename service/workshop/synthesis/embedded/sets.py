"""The public sets that the embedded model learns from: people's questions with their passages.

A set is a folder with `questions.jsonl` and, where it has passages, `corpus.jsonl`. Only what may
train is given: no title, no passage without a title and no question that is held out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.core.errors import InvalidRequest
from service.workshop.facts.corpora import Passage, read_lines
from service.workshop.facts.patterns import Fact, all_facts
from service.workshop.facts.splits import is_held_out, normalise

READING: Final = ("squad_train", "boolq", "quoref")
FACTS: Final = ("2wikimultihopqa",)  # passages in whose words patterns find facts
HOPS: Final = "hotpotqa_dev"
OTHERS: Final = ("decompositions", "routing", "strategyqa", "commonsenseqa")
LONGEST_ANSWER: Final = 20  # words


class Asked(NamedTuple):
    """A question of people; `gold` holds the answer, `shown` was found with it and does not.

    `answer` is empty where the gold passage cannot answer the question.
    """

    id: str
    question: str
    answer: str
    gold: tuple[Passage, ...]
    shown: tuple[Passage, ...] = ()


def split_key(passage: Passage) -> str:
    """What decides the side of a passage: its title, or without one its text."""
    return passage.title or passage.text


class Sets:
    """The sets of one folder. Raises InvalidRequest where one is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (*READING, *FACTS, HOPS, *OTHERS):
            if not (folder / name).is_dir():
                raise InvalidRequest(f"{folder}: there is no set {name}")

    @cached_property
    def passages(self) -> dict[str, Passage]:
        """Of the training side, by id."""
        every = (
            Passage(row["id"], row["title"], row["text"].strip(), name)
            for name in (*READING, HOPS, *FACTS)
            for row in read_lines(self.folder / name / "corpus.jsonl")
        )
        return {p.id: p for p in every if p.text and not is_held_out(split_key(p))}

    @cached_property
    def facts(self) -> list[Fact]:
        return all_facts(p for p in self.passages.values() if p.source in FACTS)

    def questions(self, name: str) -> list[dict[str, Any]]:
        """The lines of a set whose question may train, without repeats."""
        rows = read_lines(self.folder / name / "questions.jsonl")
        kept: dict[str, dict[str, Any]] = {}
        for row in rows:
            row["question"] = re.sub(r"\?{2,}$", "?", " ".join(row["question"].split()))
            if row["question"] and not is_held_out(row["question"]):
                kept.setdefault(normalise(row["question"]), row)
        return list(kept.values())

    def asked(self, name: str) -> list[Asked]:
        """Questions of a set with their passages; those with a held-out one are left out."""
        found = (self._asked(row) for row in self.questions(name))
        return [asked for asked in found if asked is not None]

    def _asked(self, row: Mapping[str, Any]) -> Asked | None:
        gold = self._known(row["supporting_passage_ids"])
        shown = [i for i in row.get("passage_ids", ()) if i not in row["supporting_passage_ids"]]
        answer = short_answer(row["answers"])
        if not gold or len(gold) < len(row["supporting_passage_ids"]):
            return None
        if len(answer.split()) > LONGEST_ANSWER or bool(answer) != row.get("answerable", True):
            return None
        return Asked(row["id"], row["question"], answer, gold, self._known(shown))

    def _known(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        return tuple(self.passages[i] for i in ids if i in self.passages)


def short_answer(answers: Sequence[str]) -> str:
    """The shortest of the answers, without the full stop that some sets put behind each."""
    answer = " ".join(min(answers, key=len, default="").split())
    bare = answer[:-1] if answer.endswith(".") and answer.count(".") == 1 else answer
    return bare.strip(" ,;")
