"""What the labeler and the filter learn from one question, and the rows made from it (METHODS.md
§4.5, steps 4 and 6).

A teacher of any kind fills a `Lesson`. A query is a `Wording`: words, each with the hop that
removes it. Queries change only by deleting words and by appending the words of an answer. In ``When
was the father of the director of Heat born?``, hop 1 removes ``the director of Heat`` and hop 2
removes the remaining ``the father of``; the words of hop 1's answer are removed with hop 2.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.encoders.inputs import passage_text
from service.text import STOP_WORDS
from service.text.words import WordSpan, word_spans
from service.workshop.encoders.marks import Mark
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.rows import (
    FilterRow,
    LabelerRow,
    RowProvenance,
    TagName,
    sentence_words,
)

STAYS = 99  # hop number of a word that no hop removes


class TaggedWord(NamedTuple):
    text: str
    hop: int = STAYS


class Wording(NamedTuple):
    """A query: its text, and its words as the filter reads them."""

    text: str
    tokens: tuple[TaggedWord, ...]


class UsefulWord(NamedTuple):
    """A word of an info, and whether it belongs to the answer."""

    text: str
    answer: bool


def worded(text: str, phrases: Sequence[str]) -> Wording | None:
    """Return the query in which hop k + 1 answers the text `phrases[k]`. Each phrase may contain
    the previous one.

    Returns None if the words are not split as the filter splits them.
    """
    spans = [(start := text.find(phrase), start + len(phrase)) for phrase in phrases]

    def hop(word: WordSpan) -> int:
        around = (k for k, (a, b) in enumerate(spans, 1) if a <= word.start and word.end <= b)
        return next(around, STAYS)

    tokens = tuple(TaggedWord(word.text, hop(word)) for word in word_spans(text))
    agree = [token.text for token in tokens] == sentence_words(text, ())
    return Wording(text, tokens) if agree and all(a >= 0 for a, _ in spans) else None


def retyped(wording: Wording, rng: random.Random) -> Wording:
    """Return the query as another person might type it, with other case, question mark and stop
    words."""
    tokens = list(wording.tokens)
    if rng.random() < 0.25 and tokens[-1].text == "?":
        del tokens[-1]
    if rng.random() < 0.15:
        thin = rng.uniform(0.1, 0.6)
        tokens = [t for t in tokens if t.text.casefold() not in STOP_WORDS or rng.random() > thin]
    if rng.random() < 0.3:
        tokens = [TaggedWord(token.text.lower(), token.hop) for token in tokens]
    if not tokens or tuple(tokens) == wording.tokens:
        return wording
    text = " ".join(token.text for token in tokens)
    cut = sentence_words(text, ())
    return Wording(text, tuple(tokens)) if cut == [t.text for t in tokens] else wording


def rewritten(
    wording: Wording, hop: int, useful: Sequence[Sequence[UsefulWord]]
) -> tuple[list[str], list[Mark], Wording] | None:
    """Return the infos, a label for each word of the filter's input, and the next query.

    Hops up to `hop` are answered: their words are removed, and the words of their answers are kept.
    The first answer's words are removed with the hop after `hop`, the second's with the one after
    that. Returns None if the infos are not split as the filter splits them.
    """
    infos = [" ".join(word.text for word in info) for info in useful]
    flat = [word for info in useful for word in info]
    cut = sentence_words(wording.text, infos)
    if cut != [t.text for t in wording.tokens] + [w.text for w in flat]:
        return None
    marks: list[Mark] = [1 if token.hop > hop else 0 for token in wording.tokens]
    marks += [1 if word.answer else 0 for word in flat]
    left = [token for token in wording.tokens if token.hop > hop]
    answers = [[word.text for word in info if word.answer] for info in useful]
    for after, answer in enumerate(filter(None, answers), 1):
        left += [TaggedWord(word, hop + after) for word in answer]
    return infos, marks, Wording(" ".join(token.text for token in left), tuple(left))


class HopLesson(NamedTuple):
    """One hop: the query of the search, its passage, and the useful words of that passage.

    `marks` has a label for each word of the passage's text form. `last` means that no query
    follows.
    """

    query: str
    passage: Paragraph
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
    passage: Paragraph


def text_words(passage: Paragraph) -> list[str]:
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
    own = {part.passage.id for part in item.parts}  # its title may contain an exchanged name

    def row(query: str, passage: Paragraph, tag: TagName, marks: Sequence[Mark]) -> LabelerRow:
        nonlocal made
        made += 1
        source = provenance_of(item)
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
