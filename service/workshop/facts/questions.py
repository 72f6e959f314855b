"""Make questions of every form from facts, with their hops.

`single`, `compound`, `referring`, `bridge`, `comparison` and `directed_comparison` make one
question; the later parts of a `referring` question only say "it". `Maker` draws questions.
`comparisons.py` compares synthetic dates and numbers. `typed_like`, `as_typed` and `compound_parts`
adapt texts to the letter case of a question.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.workshop.facts.names import Names, substitute
from service.workshop.facts.patterns import KIN, PEOPLE, PEOPLE_FIRST, Fact
from service.workshop.facts.splits import canonical_form
from service.workshop.facts.wordings import (
    COMPARISONS,
    DIRECTED,
    PHRASES,
    SAME,
    SINGLE,
    join_questions,
    wordings,
)

PERSONS = PEOPLE | PEOPLE_FIRST | KIN  # kinds of facts about people
DATES = {"birth_date", "death_date", "film_year", "founded", "release_date"}


@dataclass(frozen=True)
class Hop:
    """One sub-question with its answer. `fact` contains the passage that answers it."""

    question: str
    answer: str
    fact: Fact


@dataclass(frozen=True)
class Synthesised:
    """A question with its hops. `route` is single, compound or complex."""

    route: str
    form: str
    question: str
    hops: tuple[Hop, ...]
    answer: str


def year_of(date: str) -> tuple[int, int, int]:
    """Return a date as (year, month, day) for comparison, with zeros for unknown parts."""
    months = "January February March April May June July August September October November December"
    year = re.search(r"\d{3,4}", date)
    month = next((n for n, m in enumerate(months.split(), 1) if m in date), 0)
    day = re.search(r"\b\d{1,2}\b", date)
    return (int(year.group()) if year else 0, month, int(day.group()) if day and month else 0)


def hop_of(fact: Fact, rng: random.Random, *, unseen: bool = False) -> Hop:
    """Return the plain question for a fact, in one of its wordings."""
    options = wordings(SINGLE[fact.kind], unseen=unseen)
    if fact.kind in DATES and not fact.answer.isdigit():
        options = [option for option in options if "year" not in option] or options
    return Hop(rng.choice(options).format(s=fact.subject), fact.answer, fact)


def plain_hop(fact: Fact) -> Hop:
    """Return the first wording of the fact's kind, which is the only one that refining writes."""
    return Hop(SINGLE[fact.kind][0].format(s=fact.subject), fact.answer, fact)


def single(fact: Fact, rng: random.Random, *, unseen: bool = False) -> Synthesised:
    """Return a question that one passage answers."""
    hop = hop_of(fact, rng, unseen=unseen)
    return Synthesised("single", fact.kind, hop.question, (hop,), hop.answer)


def compound(facts: Sequence[Fact], rng: random.Random, *, unseen: bool = False) -> Synthesised:
    """Join two to four questions into one. The gold parts are joined with `` && ``."""
    hops = tuple(hop_of(fact, rng, unseen=unseen) for fact in facts)
    question = join_questions([hop.question for hop in hops], rng)
    return Synthesised("compound", "compound", question, hops, " && ".join(h.answer for h in hops))


def bridge(first: Fact, second: Fact, rng: random.Random, *, unseen: bool = False) -> Synthesised:
    """Return a question about the answer of another: ``Where was the director of X born?``."""
    phrase = rng.choice(PHRASES[first.kind]).format(s=first.subject)
    outer = [w for w in wordings(SINGLE[second.kind], unseen=unseen) if "the film {s}" not in w]
    if not second.answer.isdigit():
        outer = [w for w in outer if "year" not in w] or outer
    question = rng.choice(outer or SINGLE[second.kind]).format(s=phrase)
    question = question[:1].upper() + question[1:]
    hops = (plain_hop(first), plain_hop(second))
    return Synthesised("complex", "bridge", question, hops, second.answer)


def comparison(a: Fact, b: Fact, rng: random.Random, *, unseen: bool = False) -> Synthesised | None:
    """Return a question on which of two things comes first, or on whether both are the same.

    Returns None if the facts do not answer it.
    """
    hops = (plain_hop(a), plain_hop(b))
    if a.kind in SAME:
        question = rng.choice(wordings(SAME[a.kind], unseen=unseen)).format(
            a=a.subject, b=b.subject
        )
        answer = "yes" if canonical_form(a.answer) == canonical_form(b.answer) else "no"
        return Synthesised("complex", f"same {a.kind}", question, hops, answer)
    choices = [entry for entry in COMPARISONS if entry[0] == a.kind]
    if not choices or year_of(a.answer)[0] == year_of(b.answer)[0]:
        return None
    _, smaller, options = rng.choice(choices)
    question = rng.choice(wordings(options, unseen=unseen)).format(a=a.subject, b=b.subject)
    answer = a.subject if (year_of(a.answer) < year_of(b.answer)) is smaller else b.subject
    return Synthesised("complex", f"compare {a.kind}", question, hops, answer)


def directed_comparison(
    films: tuple[Fact, Fact], births: tuple[Fact, Fact], rng: random.Random, *, unseen: bool = False
) -> Synthesised | None:
    """Return a four-hop question: which of two films has the director who was born or died first.

    Returns None if the facts do not answer it.
    """
    choices = [entry for entry in DIRECTED if entry[0] == births[0].kind]
    a, b = births
    if not choices or year_of(a.answer)[0] == year_of(b.answer)[0]:
        return None
    _, smaller, options = rng.choice(choices)
    names = (films[0].subject, films[1].subject)
    question = rng.choice(wordings(options, unseen=unseen)).format(a=names[0], b=names[1])
    first_wins = (year_of(a.answer) < year_of(b.answer)) is smaller
    hops = tuple(plain_hop(fact) for fact in (films[0], films[1], a, b))
    form = "directed first" if smaller else "directed last"
    return Synthesised("complex", form, question, hops, names[0] if first_wins else names[1])


def referring(question: str, subject: str, kind: str, female: bool) -> str | None:
    """Return the question with a pronoun instead of its subject, or None if that would be
    ungrammatical."""
    person = kind in PERSONS
    he, his = (("she", "her") if female else ("he", "his")) if person else ("it", "its")
    if re.search(rf"\b(?:film|song|book|record|city|place) {re.escape(subject)}", question):
        return None
    if f"{subject}'s" in question:
        return question.replace(f"{subject}'s", his)
    if person and question.rstrip("? ").endswith(subject):
        return None  # "who is the father of him" reads badly
    return question.replace(subject, he)


class Maker:
    """Draws synthesised questions of every form from one side of the split."""

    def __init__(
        self, facts: Sequence[Fact], names: Names, rng: random.Random, *, unseen: bool = False
    ) -> None:
        self.rng, self.names, self.unseen = rng, names, unseen
        self.by_kind: dict[str, list[Fact]] = {}
        self.by_subject: dict[str, list[Fact]] = {}
        for fact in facts:
            self.by_kind.setdefault(fact.kind, []).append(fact)
            self.by_subject.setdefault(fact.subject, []).append(fact)
        self.kinds = sorted(self.by_kind)
        self.weights = [len(self.by_kind[kind]) ** 0.5 for kind in self.kinds]
        self.rich = sorted(s for s, fs in self.by_subject.items() if len(fs) > 1)
        self.links = [
            (first, second)
            for first in facts if first.kind in PHRASES
            for second in self.by_subject.get(first.answer, ())
        ]  # fmt: skip

    def fact(self, kind: str = "") -> Fact:
        """Draw a fact. The probability of a kind is proportional to the square root of its
        frequency."""
        kind = kind or self.rng.choices(self.kinds, self.weights)[0]
        return self.rng.choice(self.by_kind[kind])

    def renamed(self, fact: Fact, share: float = 0.7) -> Fact:
        """Return the fact, with exchanged names at the probability `share`."""
        return substitute(fact, self.names, self.rng) if self.rng.random() < share else fact

    def single(self, share: float = 0.7) -> Synthesised:
        return single(self.renamed(self.fact(), share), self.rng, unseen=self.unseen)

    def compound(self, share: float = 0.6) -> Synthesised:
        """Draw several questions, mostly about one entity."""
        size = self.rng.choices((2, 3, 4), (6, 3, 1))[0]
        if self.rng.random() < 0.55:
            facts = list(self.by_subject[self.rng.choice(self.rich)])
            facts = self.rng.sample(facts, min(size, len(facts)))
            if self.rng.random() < share:
                name = self.names.subject(facts[0].kind, self.rng)
                facts = [substitute(f, self.names, self.rng, subject=name) for f in facts]
        else:
            facts = [self.renamed(self.fact(), share) for _ in range(size)]
        return compound(facts, self.rng, unseen=self.unseen)

    def referring(self) -> Synthesised:
        """Draw two or three questions about one subject, which only the first one names.

        The hops name it in each question.
        """
        while True:
            facts = self.by_subject[self.rng.choice(self.rich)]
            name = self.names.subject(facts[0].kind, self.rng)
            drawn = self.rng.sample(facts, min(len(facts), self.rng.choice((2, 2, 3))))
            female = self.rng.random() < 0.5
            hops = [
                hop_of(substitute(f, self.names, self.rng, subject=name), self.rng) for f in drawn
            ]
            if any(hop.fact.subject != name for hop in hops):
                continue
            follow_ups = [referring(hop.question, name, hop.fact.kind, female) for hop in hops[1:]]
            if all(follow_ups) and len({hop.fact.kind for hop in hops}) == len(hops):
                asked = join_questions([hops[0].question, *filter(None, follow_ups)], self.rng)
                answer = " && ".join(hop.answer for hop in hops)
                return Synthesised("compound", "referring", asked, tuple(hops), answer)

    def bridge(self, share: float = 0.7) -> Synthesised:
        """Draw a real link between two passages, or create one by giving both the same name."""
        if self.links and self.rng.random() >= share:
            first, second = self.rng.choice(self.links)
            return bridge(first, second, self.rng, unseen=self.unseen)
        people = ("director", "director", "director", "director", "father", "mother", "spouse",
                  "composer", "performer", "author", "writer", "starring", "producer",
                  "child")  # fmt: skip
        first = self.fact(self.rng.choice([k for k in people if k in self.by_kind]))
        kinds = ("birth_date", "death_date", "birth_place", "death_place", "nationality",
                 "father", "mother", "spouse", "occupation", "school")  # fmt: skip
        second = self.fact(self.rng.choice([k for k in kinds if k in self.by_kind]))
        name = self.names.person(self.rng)
        first = substitute(first, self.names, self.rng, answer=name)
        second = substitute(second, self.names, self.rng, subject=first.answer)
        return bridge(first, second, self.rng, unseen=self.unseen)

    def comparison(self, share: float = 0.5) -> Synthesised:
        """Draw two entities to compare by one kind of fact, or two films by their directors."""
        while True:
            if share > 0 and self.rng.random() < 0.2:
                made = self.directed()
            else:
                made = self._compared(share)
            if made is not None:
                return made

    def _compared(self, share: float) -> Synthesised | None:
        kinds = ("birth_date", "birth_date", "death_date", "film_year", "film_year", "founded",
                 "nationality", "nationality", "film_country", "birth_place")  # fmt: skip
        kind = self.rng.choice([k for k in kinds if k in self.by_kind])
        a, b = (self.renamed(self.fact(kind), share) for _ in range(2))
        if kind in SAME and self.rng.random() < 0.5:
            b = substitute(b, self.names, self.rng, answer=a.answer) if share else self._like(a)
        if a.subject == b.subject:
            return None
        return comparison(a, b, self.rng, unseen=self.unseen)

    def _like(self, fact: Fact) -> Fact:
        same = [f for f in self.by_kind[fact.kind] if f.answer == fact.answer]
        return self.rng.choice(same)

    def directed(self) -> Synthesised | None:
        """Draw two films to compare by their directors, with all names exchanged.

        Returns None if the dates do not answer the question.
        """
        films, births = [], []
        kind = self.rng.choice(("birth_date", "birth_date", "death_date"))
        for _ in range(2):
            film = substitute(self.fact("director"), self.names, self.rng)
            films.append(film)
            births.append(substitute(self.fact(kind), self.names, self.rng, subject=film.answer))
        pair, dates = (films[0], films[1]), (births[0], births[1])
        return directed_comparison(pair, dates, self.rng, unseen=self.unseen)


def typed_like(hop: Hop, question: str) -> Hop:
    """Return the hop with its subject in lower case if the question only has it in lower case."""
    subject = hop.fact.subject
    if subject not in question and subject.lower() in question:
        return Hop(hop.question.replace(subject, subject.lower()), hop.answer, hop.fact)
    return hop


def as_typed(answer: str, question: str) -> str:
    """Return the answer in lower case if the question only has it in lower case."""
    return answer.lower() if answer not in question and answer.lower() in question else answer


def compound_parts(made: Synthesised, question: str) -> list[str]:
    """Return the parts of a compound question, in lower case if the question is in lower case."""
    parts = [f"{hop.question.rstrip('? ')}?" for hop in made.hops]
    return [part.lower() if question == question.lower() else _capital(part) for part in parts]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
