"""The public datasets for training the embedded model: people's questions with their passages.

A dataset is a folder with `questions.jsonl` and, if it has passages, `corpus.jsonl`. Only data that
may be used for training is returned: no held-out title or question, and no passage without a title.

A sheet is a group of passages that are shown together, with all questions about them and some
questions about other passages. Prompts show the passages before the question, which allows `train
sft` to process the passages of a sheet once for many answers (`service.workshop.lean.packing`).
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.core.errors import InvalidRequest
from service.prompts.templates import PassageText
from service.workshop.facts.corpora import Paragraph, read_lines
from service.workshop.facts.patterns import Fact, all_facts
from service.workshop.facts.splits import canonical_form, is_held_out

READING: Final = ("squad_train", "boolq", "quoref")
FACTS: Final = ("2wikimultihopqa",)  # datasets in whose passages patterns find facts
HOPS: Final = "hotpotqa_dev"
OTHERS: Final = ("decompositions", "routing", "strategyqa", "commonsenseqa")
LONGEST_ANSWER: Final = 20  # in words


class Asked(NamedTuple):
    """A question that people wrote.

    `gold` contains the answer; `shown` was found with it and does not. `answer` is empty if the
    gold passage does not answer the question.
    """

    id: str
    question: str
    answer: str
    gold: tuple[Paragraph, ...]
    shown: tuple[Paragraph, ...] = ()


def split_key(passage: Paragraph) -> str:
    """Return the text that decides the side of a passage: its title, or its text if it has no
    title."""
    return passage.title or passage.text


class Sets:
    """The datasets of one folder. Raises InvalidRequest if one is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (*READING, *FACTS, HOPS, *OTHERS):
            if not (folder / name).is_dir():
                raise InvalidRequest(f"{folder}: there is no set {name}")

    @cached_property
    def passages(self) -> dict[str, Paragraph]:
        """Return the passages of the training side, by id."""
        every = (
            Paragraph(row["id"], row["title"], row["text"].strip(), name)
            for name in (*READING, HOPS, *FACTS)
            for row in read_lines(self.folder / name / "corpus.jsonl")
        )
        return {p.id: p for p in every if p.text and not is_held_out(split_key(p))}

    @cached_property
    def facts(self) -> list[Fact]:
        return all_facts(p for p in self.passages.values() if p.source in FACTS)

    def questions(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a dataset whose question may be used for training, without
        duplicates."""
        rows = read_lines(self.folder / name / "questions.jsonl")
        kept: dict[str, dict[str, Any]] = {}
        for row in rows:
            row["question"] = re.sub(r"\?{2,}$", "?", " ".join(row["question"].split()))
            if row["question"] and not is_held_out(row["question"]):
                kept.setdefault(canonical_form(row["question"]), row)
        return list(kept.values())

    def asked(self, name: str) -> list[Asked]:
        """Return the questions of a dataset with their passages, except those with a held-out
        passage."""
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

    def _known(self, ids: Sequence[str]) -> tuple[Paragraph, ...]:
        return tuple(self.passages[i] for i in ids if i in self.passages)


def short_answer(answers: Sequence[str]) -> str:
    """Return the shortest answer, without the final full stop that some datasets add."""
    answer = " ".join(min(answers, key=len, default="").split())
    bare = answer[:-1] if answer.endswith(".") and answer.count(".") == 1 else answer
    return bare.strip(" ,;")


YES_NO: Final = frozenset({"yes", "no"})


class Shown(NamedTuple):
    """A passage, and the part of it that a prompt shows."""

    passage: Paragraph
    text: PassageText


class Sheets:
    """The questions of each passage, drawn so that their frequencies differ by at most one."""

    def __init__(self, asked: Iterable[Asked], rng: random.Random) -> None:
        self.rng = rng
        self.about: dict[str, list[Asked]] = defaultdict(list)
        for one in asked:
            if len(one.gold) == 1:
                self.about[one.gold[0].id].append(one)
        self.times: dict[str, int] = defaultdict(int)

    def answerable(self, shown: Sequence[Shown], most: int) -> list[Asked]:
        """Return up to `most` questions about the shown passages, the least used ones first.

        Questions whose answer is not in the shown text of their passage are left out.
        """
        found = [
            one
            for part in shown
            for one in self.about[part.passage.id]
            if one.answer and bears(part.text, one.answer)
        ]
        return self._least_asked(found, most)

    def refused(self, shown: Sequence[Shown], near: Sequence[Paragraph], most: int) -> list[Asked]:
        """Return up to `most` questions that the shown passages do not answer.

        They are about a shown passage that cannot answer them, or about passages in `near` that are
        not shown.
        """
        # A set has no fixed order; the same seed must give the same rows.
        ids = dict.fromkeys(part.passage.id for part in shown)
        found = [one for i in ids for one in self.about[i] if not one.answer]
        texts = f" {canonical_form(' '.join(f'{s.text.title} {s.text.text}' for s in shown))} "
        for passage in near:
            if passage.id not in ids:
                found += [
                    one
                    for one in self.about[passage.id]
                    if one.answer
                    and one.answer not in YES_NO
                    and f" {canonical_form(one.answer)} " not in texts
                ]
        return self._least_asked(found, most)

    def _least_asked(self, found: Sequence[Asked], most: int) -> list[Asked]:
        chosen = sorted(
            self.rng.sample(found, len(found)), key=lambda one: self.times[one.id]
        )[:most]  # fmt: skip
        for one in chosen:
            self.times[one.id] += 1
        return chosen


def bears(text: PassageText, answer: str) -> bool:
    """Return whether the text contains the answer literally, which is never the case for yes and
    no."""
    return answer in YES_NO or answer.casefold() in text.text.casefold()
