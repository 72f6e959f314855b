"""What the labeler and the filter learn from one question, and the rows made from it (METHODS.md
§4.5, steps 4 and 6).

Queries change only by deleting words and by appending the words of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.core.domain import Passage
from service.encoders.inputs import passage_text
from service.text.words import word_spans
from service.workshop.encoders.marks import Mark
from service.workshop.facts.rows import (
    FilterRow,
    LabelerRow,
    RowProvenance,
    TagName,
    sentence_words,
)


class HopLesson(NamedTuple):
    """One hop: the query of the search, its passage, and the useful words of that passage.

    `marks` has a label for each word of the passage's text form. `last` means that no query
    follows.
    """

    query: str
    passage: Passage
    marks: Sequence[Mark]
    last: bool


class Rewrite(NamedTuple):
    """A filter's input, with a label for each of its words (see `sentence_words`)."""

    query: str
    infos: Sequence[str]
    marks: Sequence[Mark]

    @property
    def result(self) -> str:
        """The next query, written as the served filter returns it."""
        kept = zip(sentence_words(self.query, self.infos), self.marks, strict=True)
        return " ".join(word for word, mark in kept if mark)


class Lesson(NamedTuple):
    """A question with its parts in order, and the rewrites between them.

    `written` means that people wrote the question. `titles` are the titles of its original
    passages, which decide the side of the split even if names were exchanged.
    """

    id: str
    form: str
    question: str
    parts: Sequence[HopLesson]
    rewrites: Sequence[Rewrite]
    titles: Sequence[str]
    answer_title: str
    written: bool = False


class Negative(NamedTuple):
    """A passage that the query of a part finds but that does not answer it."""

    query: str
    passage: Passage


def text_words(passage: Passage) -> list[str]:
    """Return the words of a passage's text form."""
    return [word.text for word in word_spans(passage_text(passage.title, passage.text))]


def info_of(part: HopLesson) -> str:
    """Return the marked words, as the served labeler returns them."""
    marked = zip(text_words(part.passage), part.marks, strict=True)
    return " ".join(word for word, mark in marked if mark)


def provenance_of(item: Lesson) -> RowProvenance:
    return RowProvenance(
        pipeline="efficientrag",
        teacher="rules",
        item=item.id,
        titles=list(dict.fromkeys(item.titles)),
        answer_title=item.answer_title,
        written=item.written,
    )


def labeler_rows(item: Lesson, negatives: Sequence[Negative]) -> Iterator[LabelerRow]:
    """Yield one row per part, then one per negative, in which no word is marked."""
    made = 0

    def row(query: str, passage: Passage, tag: TagName, marks: Sequence[Mark]) -> LabelerRow:
        nonlocal made
        made += 1
        source = provenance_of(item)
        titles = list(dict.fromkeys([*source.titles, passage.title]))
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


def filter_rows(item: Lesson) -> Iterator[FilterRow]:
    """Yield one row per rewrite."""
    for number, rewrite in enumerate(item.rewrites, 1):
        yield FilterRow(
            id=f"{item.id}/{number}",
            question=item.question,
            query=rewrite.query,
            infos=list(rewrite.infos),
            words=sentence_words(rewrite.query, rewrite.infos),
            labels=list(rewrite.marks),
            provenance=provenance_of(item),
        )
