"""Sheets: passages that are shown together, and what people ask about them.

A sheet has all questions whose passage is on it and some whose passage is not, so that one
reading of the passages teaches many answers. Prompts show passages before the question, which
lets `train sft` compute the passages of a sheet once (service.workshop.lean.packing).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from service.prompts.templates import PassageText
from service.workshop.facts.corpora import Passage
from service.workshop.facts.splits import normalise
from service.workshop.synthesis.embedded.sets import Asked

YES_NO: Final = frozenset({"yes", "no"})


class Shown(NamedTuple):
    """A passage and what a prompt shows of it."""

    passage: Passage
    text: PassageText


class Sheets:
    """Questions by their passage; each is asked as often as any other, give or take one."""

    def __init__(self, asked: Iterable[Asked], rng: random.Random) -> None:
        self.rng = rng
        self.about: dict[str, list[Asked]] = defaultdict(list)
        for one in asked:
            if len(one.gold) == 1:
                self.about[one.gold[0].id].append(one)
        self.times: dict[str, int] = defaultdict(int)

    def answerable(self, shown: Sequence[Shown], most: int) -> list[Asked]:
        """Up to `most` questions about what is shown, the least asked first; those whose answer is
        not in what is shown of their passage are left out."""
        found = [
            one
            for part in shown
            for one in self.about[part.passage.id]
            if one.answer and bears(part.text, one.answer)
        ]
        return self._least_asked(found, most)

    def refused(self, shown: Sequence[Shown], near: Sequence[Passage], most: int) -> list[Asked]:
        """Up to `most` questions that nothing shown answers: those that their own passage, which is
        shown, cannot answer, and those about passages that are `near` and not shown."""
        ids = {part.passage.id for part in shown}
        found = [one for i in ids for one in self.about[i] if not one.answer]
        texts = f" {normalise(' '.join(f'{s.text.title} {s.text.text}' for s in shown))} "
        for passage in near:
            if passage.id not in ids:
                found += [
                    one
                    for one in self.about[passage.id]
                    if one.answer
                    and one.answer not in YES_NO
                    and f" {normalise(one.answer)} " not in texts
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
    """Whether the answer stands in the text word for word; yes and no stand nowhere."""
    return answer in YES_NO or answer.casefold() in text.text.casefold()
