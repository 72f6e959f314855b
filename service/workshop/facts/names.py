"""Exchange names in sentences, so that a reader model learns to read instead of remembering."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.patterns import MONTH, Fact, subject_of

_ONSETS = re.findall(
    r"\w+", "b br c ch cr d dr f fl g gr h j k kl l m n p pr r s sh st t th tr v w y z"
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ia", "io", "ou")
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "nd", "rt", "ss"]
MONTHS = MONTH.strip("(?:)").split("|")
_DATE_KINDS = {"birth_date", "death_date", "release_date"}
_YEAR_KINDS = {"film_year", "founded"}
PERSON_KINDS = {
    "father", "mother", "spouse", "child", "sibling", "director", "starring", "producer",
    "writer", "composer", "author", "founder",
}  # fmt: skip
_WORK_KINDS = {
    "director", "film_year", "film_country", "genre", "starring", "composer", "performer",
    "author", "publisher", "label", "release_date", "writer", "producer",
}  # fmt: skip


def syllable_name(rng: random.Random) -> str:
    """Return a synthetic capitalised word of two or three syllables."""
    parts = [
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        for _ in range(rng.randint(1, 3))
    ]
    return "".join(parts).capitalize()


def random_date(like: str, rng: random.Random) -> str:
    """Return a date in the format of `like` (day first, month first, or a year)."""
    year = rng.randint(1880, 2015) if rng.random() < 0.7 else rng.randint(1100, 1900)
    day, month = rng.randint(1, 28), rng.choice(MONTHS)
    if re.fullmatch(r"\d+", like):
        return str(year)
    return f"{day} {month} {year}" if like[0].isdigit() else f"{month} {day}, {year}"


class Names:
    """Pools of names and answers from passages that are not held out."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        people = sorted({f.answer for f in facts if f.kind in PERSON_KINDS})
        people += sorted({f.subject for f in facts if f.kind in {"birth_date", "nationality"}})
        plain = [name.split() for name in people if name.replace(" ", "").isalpha()]
        self.first = sorted({words[0] for words in plain if len(words) > 1})
        self.last = sorted({words[-1] for words in plain if len(words) > 1})
        self.titles = sorted({f.subject for f in facts if f.kind in _WORK_KINDS})
        self.words = sorted({w for t in self.titles for w in t.split() if len(w) > 3})
        self.answers: dict[str, list[str]] = {}
        for fact in facts:
            self.answers.setdefault(fact.kind, []).append(fact.answer)

    def person(self, rng: random.Random) -> str:
        """Return a first and a last name, each real or synthetic."""
        first = rng.choice(self.first) if rng.random() < 0.75 else syllable_name(rng)
        last = rng.choice(self.last) if rng.random() < 0.6 else syllable_name(rng)
        return f"{first} {last}"

    def title(self, rng: random.Random) -> str:
        """Return the title of a work: a real one, or a combination of words of several."""
        if rng.random() < 0.4:
            return rng.choice(self.titles)
        words = [
            rng.choice(self.words) if rng.random() < 0.7 else syllable_name(rng)
            for _ in range(rng.randint(1, 3))
        ]
        return " ".join(words)

    def subject(self, kind: str, rng: random.Random) -> str:
        """Return a new subject for a fact of this kind."""
        if kind in _WORK_KINDS:
            return self.title(rng)
        if kind in {"location", "population", "capital_of", "headquarters", "founded", "owner"}:
            return syllable_name(rng) if rng.random() < 0.5 else self.title(rng)
        return self.person(rng)

    def answer(self, fact: Fact, rng: random.Random) -> str:
        """Return a new answer of the fact's kind, in the format of the old one."""
        if fact.kind in _DATE_KINDS | _YEAR_KINDS:
            return random_date(fact.answer, rng)
        if fact.kind == "population":
            return f"{rng.randint(1, 99)},{rng.randint(100, 999)}"
        if fact.kind in PERSON_KINDS:
            return self.person(rng)
        if fact.kind in {"location", "birth_place", "death_place"} and rng.random() < 0.3:
            return syllable_name(rng)
        return rng.choice(self.answers[fact.kind])


def rename(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """Return `text` with whole words replaced simultaneously, longest first."""
    table = {old: new for old, new in changes if old}
    if not table:
        return text
    ordered = sorted(table, key=len, reverse=True)
    pattern = r"(?<!\w)(?:" + "|".join(re.escape(old) for old in ordered) + r")(?!\w)"
    return re.sub(pattern, lambda match: table[match.group()], text)


def substitute(
    fact: Fact, names: Names, rng: random.Random, *, subject: str = "", answer: str = ""
) -> Fact:
    """Return the fact with another subject and answer, in a passage rewritten to match."""
    subject = subject or names.subject(fact.kind, rng)
    answer = answer or names.answer(fact, rng)
    changes = [(fact.subject, subject), (fact.answer, answer)]
    old, new = fact.subject.split(), subject.split()
    if 1 < len(old) <= 3 and len(new) > 1 and fact.kind not in _WORK_KINDS and len(old[-1]) > 3:
        changes += [(old[-1], new[-1]), (old[0], new[0])]
    text = rename(fact.passage.text, changes[::-1])
    tail = fact.passage.title[len(subject_of(fact.passage.title)) :]
    changed = Paragraph(fact.passage.id, subject + tail, text, fact.passage.source)
    if answer not in text:
        return fact
    return Fact(fact.kind, subject, answer, changed)


def alike(name: str, names: Names, rng: random.Random) -> str:
    """Return another name that shares a word with `name`, for distractors that are hard to
    distinguish."""
    words = name.split()
    if len(words) < 2:
        return f"{name} {syllable_name(rng)}"
    other = rng.choice(names.last) if rng.random() < 0.5 else syllable_name(rng)
    return " ".join([words[0], *words[1:-1], other] if rng.random() < 0.5 else [other, *words[1:]])
