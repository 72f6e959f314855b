"""A run without a teacher: draws, counts, and writes as a run with one does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from service.core.errors import InvalidRequest
from service.workshop.facts.corpora import Passage
from service.workshop.facts.splits import Side, normalise
from service.workshop.synthesis.contract import BadLine, Dropped, Item, Lines, Outcome, Source
from service.workshop.synthesis.driver import kept
from service.workshop.synthesis.journal import Record
from service.workshop.synthesis.pipelines import PipelineName
from service.workshop.synthesis.reading import passage_of
from service.workshop.synthesis.report import Account
from service.workshop.synthesis.rules.known import Draw, Known
from service.workshop.synthesis.teacher import Spent

TEACHER: Final = "rules"
DRAWS: Final = 1_000  # where no --limit says how many


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages and bad lines of an input, and how much was found in it."""

    known: Known
    bad: Sequence[tuple[int, str]]

    @property
    def counts(self) -> Mapping[str, int]:
        known = self.known
        return {
            "passages": len(known.passages) + len(known.others),
            "of this side": len(known.passages),
            "facts": len(known.facts),
        }


def read_corpus(
    lines: Lines, bad: Sequence[tuple[int, str]], side: Side, seed: int, templates: str = ""
) -> Corpus:
    """The passages (`id`, `title`, `text`) of an input; those of an earlier id are bad lines."""
    passages: dict[str, Passage] = {}
    wrong = list(bad)
    for number, line in lines:
        try:
            given = passage_of(line)
            if given.passage_id in passages:
                raise BadLine("id of an earlier line")
            passages[given.passage_id] = Passage(given.passage_id, given.title, given.text, "")
        except BadLine as error:
            wrong.append((number, error.reason))
    own = [p for p in passages.values() if p.held_out is (side == "test")]
    others = [p for p in passages.values() if p.held_out is not (side == "test")]
    return Corpus(Known(own, others, side, random.Random(seed), templates), sorted(wrong))


def draw_all(name: PipelineName, corpus: Corpus, size: int | None) -> Account:
    """Draw `size` times, no question twice.

    Raises InvalidRequest for a corpus that the rules of `name` can make nothing of.
    """
    draw = _begin(name, corpus)
    asked: set[str] = set()
    items = [Item(f"rules-{number}", None, Source()) for number in range(size or DRAWS)]
    records: dict[str, Record] = {}
    for number, item in enumerate(items):
        try:
            outcome = _new(draw(number), asked)
            records[item.id] = kept(item, outcome, corpus.known.side, Spent())
        except Dropped as drop:
            records[item.id] = Record(item.id, dropped=drop.reason)
    account = Account(items, records, {}, corpus.bad, corpus.counts)
    if not any(record.rows for record in records.values()):
        drops = Counter(record.dropped for record in records.values())
        raise _unusable(name, corpus, f"all {len(items)} draws came to nothing: {dict(drops)}")
    return account


def _begin(name: PipelineName, corpus: Corpus) -> Draw:
    if not corpus.known.facts:
        raise _unusable(name, corpus, "no fact was found")
    try:
        draw: Draw = import_module(f"service.workshop.synthesis.rules.{name}").begin(corpus.known)
    except Dropped as drop:
        raise _unusable(name, corpus, drop.reason) from None
    return draw


def _unusable(name: PipelineName, corpus: Corpus, why: str) -> InvalidRequest:
    counts = ", ".join(f"{what} {count}" for what, count in corpus.counts.items())
    return InvalidRequest(
        f"the rules of {name} make nothing of this corpus: {why} ({counts}, bad lines "
        f"{len(corpus.bad)}); give passages in the style of an encyclopedia, whose titles are "
        "their subjects, or a teacher"
    )


def _new(outcome: Outcome, asked: set[str]) -> Outcome:
    question = normalise(str(outcome.rows[0].fields["question"]))
    if question in asked:
        raise Dropped("same question again")
    asked.add(question)
    return outcome
