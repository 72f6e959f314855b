"""What one question teaches, before its passages are searched for negatives; and its rows.

A teacher of any kind fills an `Item`; `rows_of` writes what METHODS.md §4.5, step 6, says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.encoders.inputs import passage_text
from service.encoders.words import words
from service.workshop.encoders.alignment import Mark
from service.workshop.facts.corpora import Passage
from service.workshop.facts.labels import FilterRow, LabelerRow, TagName, sentence_words
from service.workshop.facts.rows import RowProvenance


class Part(NamedTuple):
    """One hop: the query it is searched with, its passage and that passage's useful words.

    `marks` has a label per word of the passage's text form. `last`: nothing is asked after it.
    """

    query: str
    passage: Passage
    marks: Sequence[Mark]
    last: bool


class Rewrite(NamedTuple):
    """A filter's input, and a label per word of it (`sentence_words`)."""

    query: str
    infos: Sequence[str]
    marks: Sequence[Mark]

    @property
    def result(self) -> str:
        """The next query, spelt as the filter gives it when served."""
        kept = zip(sentence_words(self.query, self.infos), self.marks, strict=True)
        return " ".join(word for word, mark in kept if mark)


class Item(NamedTuple):
    """A question with its parts, in order, and the rewrites between them.

    `written`: people wrote it. `titles`: of the real passages behind it, which decide the side of
    the split even where a passage was given other names.
    """

    id: str
    form: str
    question: str
    parts: Sequence[Part]
    rewrites: Sequence[Rewrite]
    titles: Sequence[str]
    answer_title: str
    written: bool = False


class Negative(NamedTuple):
    """A passage that a part's query finds and that does not serve it."""

    query: str
    passage: Passage


def text_words(passage: Passage) -> list[str]:
    """The words of a passage's text form."""
    return [word.text for word in words(passage_text(passage.title, passage.text))]


def info_of(part: Part) -> str:
    """The marked words, as the labeler gives them when served."""
    marked = zip(text_words(part.passage), part.marks, strict=True)
    return " ".join(word for word, mark in marked if mark)


def provenance_of(item: Item, teacher: str) -> RowProvenance:
    return RowProvenance(
        pipeline="efficientrag",
        teacher=teacher,
        item=item.id,
        titles=list(dict.fromkeys(item.titles)),
        answer_title=item.answer_title,
        written=item.written,
    )


def labeler_rows(
    item: Item, negatives: Sequence[Negative], teacher: str = "rules"
) -> Iterator[LabelerRow]:
    """A row per part, then one per negative, with nothing marked."""
    made = 0
    own = {part.passage.id for part in item.parts}  # may be under another name

    def row(query: str, passage: Passage, tag: TagName, marks: Sequence[Mark]) -> LabelerRow:
        nonlocal made
        made += 1
        source = provenance_of(item, teacher)
        beside = [] if passage.id in own else [passage.title]
        titles = list(dict.fromkeys([*source.titles, *beside]))
        return LabelerRow(
            id=f"{item.id}/{made}",
            question=item.question,
            query=query,
            passage=passage_text(passage.title, passage.text),
            words=text_words(passage),
            labels=list(marks),
            tag=tag,
            provenance=source.model_copy(update={"titles": titles}),
        )

    for part in item.parts:
        tag: TagName = "finish" if part.last else "continue"
        yield row(part.query, part.passage, tag, part.marks)
    for negative in negatives:
        blank: list[Mark] = [0] * len(text_words(negative.passage))
        yield row(negative.query, negative.passage, "terminate", blank)


def filter_rows(item: Item, teacher: str = "rules") -> Iterator[FilterRow]:
    """A row per rewrite."""
    for number, rewrite in enumerate(item.rewrites, 1):
        yield FilterRow(
            id=f"{item.id}/{number}",
            question=item.question,
            query=rewrite.query,
            infos=list(rewrite.infos),
            words=sentence_words(rewrite.query, rewrite.infos),
            labels=list(rewrite.marks),
            provenance=provenance_of(item, teacher),
        )
