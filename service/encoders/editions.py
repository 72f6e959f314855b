"""Which of several answers counts where passages disagree: that of the newest edition of a
document, or of the one that the question names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from service.core.domain import Passage
from service.encoders.answers import Candidate

NEAR: Final = 1.0  # logits: an answer whose place is this much worse is of like score
SURE: Final = 2.0  # logits over "no answer" of an answer that may contradict another
ALIKE: Final = 0.4  # share of the pairs of words of the shorter text that two editions share
_NAMED: Final = re.compile(r"\b(?:(?:19|20)\d\d(?:-\d\d(?:-\d\d)?)?|\d+\.\d+)\b")
# a day or a month of a year, in words
_DAY: Final = re.compile(r"(?:\d\d?\.? )?\b[^\W\d_]{3,} (?:\d\d?, )?(?:19|20)\d\d\b")
_NUMBERING: Final = re.compile(r"[\d\W_]+|\b(?:v|version|edition|rev|revision|draft)\b")
_DATED: Final = re.compile(r"(?:19|20)\d\d(?:-\d\d(?:-\d\d)?)?")
_NUMBERS: Final = re.compile(r"\d+")


def resolve(
    question: str, passages: Sequence[Passage], found: Sequence[Candidate]
) -> tuple[Candidate, Candidate | None]:
    """Return the answer that counts among candidates of different passages, best first, and one of
    like score that contradicts it, if no edition settles which is right. What the answer has more
    than others (`lead`) is counted without other editions of its document."""
    best = found[0]
    answers = [c for c in found if c.margin > 0]
    days = [set(_words(day)) for day in _DAY.findall(question)]
    named = set(_NAMED.findall(question))
    titles = {c.passage: set(_words(passages[c.passage].title)) for c in answers}
    meant = [c for c in answers if any(day <= titles[c.passage] for day in days)]
    meant = meant or [c for c in answers if named & _marks(passages[c.passage])]
    if meant:
        best = meant[0]
    elif best.margin > 0:
        for candidate in found[1:]:
            if candidate.margin > 0 and _is_newer(
                passages[candidate.passage], passages[best.passage]
            ):
                best = candidate
    others = [c for c in found if c is not best and not _is_related(c, best, passages)]
    rivals = [c for c in others if not meant and _contradicts(c, best, passages)]
    lead = best.place - others[0].place if others else 0.0
    return replace(best, lead=lead), rivals[0] if rivals else None


def _contradicts(one: Candidate, other: Candidate, passages: Sequence[Passage]) -> bool:
    if min(one.margin, other.margin) < SURE or abs(one.place - other.place) > NEAR:
        return False
    said = [_said(answer, passages) for answer in (one, other)]
    # "10 days" and "14 days" have a word in common
    numbers = [set(_NUMBERS.findall(text.replace(",", ""))) for text in said]
    first, second = numbers if all(numbers) else [set(_words(text)) for text in said]
    return first.isdisjoint(second)


def _said(answer: Candidate, passages: Sequence[Passage]) -> str:
    text = passages[answer.passage].text
    parts = (text[start:end] for start, end in answer.spans)
    return " ".join(parts) if answer.kind == "span" else answer.kind


def _is_related(one: Candidate, other: Candidate, passages: Sequence[Passage]) -> bool:
    """Whether one is of another edition of the other's document."""
    first, second = passages[one.passage], passages[other.passage]
    return _is_newer(first, second) or _is_newer(second, first)


def _is_newer(one: Passage, other: Passage) -> bool:
    """Whether a passage is of a newer edition of another's document: they have a date or version
    each, and are editions of one document."""
    if not _is_edition(one, other):
        return False
    dates = [_date(one), _date(other)]
    if all(dates) and dates[0] != dates[1]:
        return dates[0] > dates[1]
    versions = [_version(one), _version(other)]
    return all(versions) and versions[0] > versions[1]


def _is_edition(one: Passage, other: Passage) -> bool:
    """Whether two passages have the same title but for numbers; or a file name or the beginning of
    a title in common, and much of their text, as where an edition is cut at headings and another at
    pages."""
    titles = [[_name(part) for part in passage.title.split(" › ")] for passage in (one, other)]
    if titles[0] == titles[1]:
        return True
    files = [_name(PurePath(passage.passage_id.partition("#")[0]).stem) for passage in (one, other)]
    size = min(map(len, titles))
    if (not files[0] or files[0] != files[1]) and titles[0][:size] != titles[1][:size]:
        return False
    first, second = _shingles(one.text), _shingles(other.text)
    return len(first & second) >= ALIKE * max(1, min(len(first), len(second)))


def _name(text: str) -> str:
    """Return a title or file name without the numbers of an edition."""
    return " ".join(_NUMBERING.sub(" ", text.lower()).split())


def _shingles(text: str) -> set[tuple[str, str]]:
    """Return the pairs of words, without numbers, in a text."""
    return set(pairwise(word for word in _words(text) if not word.isdigit()))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _date(passage: Passage) -> str:
    given = passage.metadata.get("valid_from") or passage.metadata.get("date") or ""
    found = _DATED.match(str(given))
    return found[0] if found else ""


def _version(passage: Passage) -> list[int]:
    return [
        int(number) for number in _NUMBERS.findall(str(passage.metadata.get("version") or ""))[:4]
    ]


def _marks(passage: Passage) -> set[str]:
    """Return the numbers by which a question may name the edition of a passage."""
    given = (str(passage.metadata.get(name) or "") for name in ("valid_from", "date", "version"))
    text = " ".join([passage.title, *given])
    return {mark for name in _NAMED.findall(text) for mark in (name, name[:4], name[:7])}
