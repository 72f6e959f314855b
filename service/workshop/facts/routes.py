"""Questions with their routes from one side of the split: people's questions and synthesised ones.

All are in the normal form that the router reads, so that no dataset can be recognised by its
formatting. The sources are CommonsenseQA (`direct`, the class that METHODS.md §1.5 draws from it),
NQ-open, WebQuestions and SQuAD (`single`), MuSiQue and StrategyQA (`complex`), and questions made
from passages. People's questions are also joined into compound ones, or have a name replaced by a
chain of relations.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from service.core.domain import RouteName
from service.encoders.router import normal_form
from service.workshop.facts.corpora import load_passages, load_questions
from service.workshop.facts.names import Names
from service.workshop.facts.patterns import Fact, all_facts
from service.workshop.facts.questions import Maker
from service.workshop.facts.splits import canonical_form
from service.workshop.facts.wordings import RELATIONS, SINGLE, join_questions

SORTS: Final = {
    "work": (
        "director", "film_year", "film_country", "genre", "starring", "producer", "writer",
        "composer", "performer", "author", "publisher", "label", "release_date"),
    "person": (
        "birth_date", "death_date", "birth_place", "death_place", "nationality", "occupation",
        "father", "mother", "spouse", "child", "sibling", "school", "team", "position"),
    "group": ("founded", "founder", "headquarters", "owner"),
    "place": ("location", "population", "capital_of"),
}  # fmt: skip
# The sort of a fact's answer by its kind, if the answer is a name.
ANSWERS: Final = {
    "person": (
        "director", "father", "mother", "spouse", "child", "sibling", "starring", "producer",
        "writer", "composer", "author", "founder"),
    "place": ("birth_place", "death_place", "location", "headquarters", "capital_of"),
    "group": ("school", "team", "owner", "publisher", "label"),
}  # fmt: skip
SHORTEST_NAME: Final = 4  # in characters; shorter names are often ordinary words as well
DEPTHS: Final = ((1, 2, 3), (6, 3, 1))  # number of relations in a chain, with weights


class Chains:
    """Draws chained questions around the names in `facts`.

    `asked` are single-hop questions that people wrote. If one contains a name of a known sort, a
    chain can replace the name.
    """

    def __init__(self, facts: Sequence[Fact], asked: Iterable[str], rng: random.Random) -> None:
        self._rng = rng
        self.names = {
            sort: sorted({fact.subject for fact in facts if fact.kind in kinds})
            for sort, kinds in SORTS.items()
        }
        self.frames = frames(asked, _sorts_of_names(facts))

    def question(self) -> str:
        """Return a question. Half of them have a wording of our own, the others the frame of a
        person's question."""
        if self.frames and self._rng.random() < 0.5:
            return self.framed(*self._rng.choice(self.frames))
        sort = self._rng.choice(sorted(SORTS))
        kind = self._rng.choice(SORTS[sort])
        return self._rng.choice(SINGLE[kind]).format(s=self.phrase(sort))

    def framed(self, frame: str, sort: str) -> str:
        """Return a person's question with a chain instead of a name."""
        return frame.format(s=self.phrase(sort)).replace("the the ", "the ")

    def phrase(self, sort: str) -> str:
        """Return a noun phrase for a thing of a sort, with one to three relations around a name."""
        return self._phrase(sort, self._rng.choices(*DEPTHS)[0])

    def _phrase(self, sort: str, depth: int) -> str:
        known = [r for r in RELATIONS if r.gives == sort and (depth > 1 or self.names[r.of])]
        relation = self._rng.choice(known)
        inner = (
            self._phrase(relation.of, depth - 1)
            if depth > 1
            else self._rng.choice(self.names[relation.of])
        )
        return self._rng.choice(relation.phrases).format(s=inner)


def _sorts_of_names(facts: Iterable[Fact]) -> dict[str, str]:
    """Return the sort of each name in lower case, except names of two sorts."""
    sorts: dict[str, set[str]] = {}
    for fact in facts:
        for table, name in ((SORTS, fact.subject), (ANSWERS, fact.answer)):
            for sort, kinds in table.items():
                if fact.kind in kinds:
                    sorts.setdefault(name.lower(), set()).add(sort)
    return {
        name: found.pop()
        for name, found in sorts.items()
        if len(found) == 1
        and len(name) >= SHORTEST_NAME
        and (" " in name or not found & {"work", "group"})
    }


def frames(questions: Iterable[str], sorts: dict[str, str]) -> list[tuple[str, str]]:
    """Return the questions that contain a name of a known sort, with `{s}` instead of the longest
    one, and its sort."""
    found = []
    for question in questions:
        words = list(re.finditer(r"\w[\w'’.-]*", question))
        spans = [
            (first.start(), last.end())
            for start, first in enumerate(words)
            for last in words[start : start + 5]
        ]
        for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
            sort = sorts.get(question[start:end].lower())
            if sort and "{" not in question and "}" not in question:
                found.append((question[:start] + "{s}" + question[end:], sort))
                break
    return found


REAL: Final[dict[str, RouteName]] = {
    "commonsenseqa": "direct",
    "nq_open": "single",
    "webquestions": "single",
    "squad": "single",
    "musique": "complex",
    "strategyqa": "complex",
}
ASKED: Final = tuple(source for source, route in REAL.items() if route == "single")
MADE: Final = 2500  # number of questions of each synthesised form
JOINED: Final = 800  # number of joined questions of each set of people's questions
CHAINED: Final = 1500  # most chained questions of each set
# Share, out of 256, of the training side that is used to fit the temperature.
VALIDATES_BELOW: Final = 26


class RoutedQuestion(NamedTuple):
    """A question with its route.

    `source` is a set of people's questions, or how the question was made. `parents` are the sets
    that it was made from.
    """

    question: str
    route: RouteName
    source: str
    parents: tuple[str, ...] = ()

    def drawn_from(self, sources: Iterable[str]) -> bool:
        return any(source in {self.source, *self.parents} for source in sources)

    @property
    def validates(self) -> bool:
        """Whether a question of the training side is used to fit the temperature instead of
        training."""
        return hashlib.sha256(canonical_form(self.question).encode()).digest()[1] < VALIDATES_BELOW


def routed_questions(
    data: Path, *, held_out: bool = False, seed: int = 0, scale: float = 1.0
) -> list[RoutedQuestion]:
    """Return all distinct questions of one side, in an order that the seed determines.

    `scale` multiplies the number of synthesised questions. On the held-out side, wordings are
    unseen and names are real.
    """
    rng = random.Random(seed)
    facts = all_facts(load_passages(data, held_out=held_out))
    asked = {
        source: [real.question for real in load_questions(data, source, held_out=held_out)]
        for source in REAL
    }
    rows = [
        RoutedQuestion(question, REAL[source], source)
        for source in REAL
        for question in asked[source]
    ]
    rows += _made(facts, rng, round(MADE * scale), held_out=held_out)
    for source in ASKED:
        rows += _joined(source, asked[source], rng, round(JOINED * scale))
        rows += _chained(source, Chains(facts, asked[source], rng), rng, round(CHAINED * scale))
    return _once(rows)


def _made(
    facts: Sequence[Fact], rng: random.Random, count: int, *, held_out: bool
) -> list[RoutedQuestion]:
    """Return questions made from passages alone."""
    maker = Maker(facts, Names(facts), rng, unseen=held_out)
    chains = Chains(facts, (), rng)
    renamed = 0.0 if held_out else 0.5
    forms: dict[str, tuple[RouteName, Callable[[], str]]] = {
        "made single": ("single", lambda: maker.single(renamed).question),
        "made compound": ("compound", lambda: maker.compound(renamed).question),
        "made bridge": ("complex", lambda: maker.bridge(renamed).question),
        "made comparison": ("complex", lambda: maker.comparison(renamed).question),
        "made chain": ("complex", chains.question),
    }
    return [
        RoutedQuestion(make(), route, form)
        for form, (route, make) in forms.items()
        for _ in range(count)
    ]


def _joined(
    source: str, asked: Sequence[str], rng: random.Random, count: int
) -> list[RoutedQuestion]:
    """Return combinations of two or three people's questions."""
    return [
        RoutedQuestion(
            join_questions(rng.sample(asked, rng.choice((2, 2, 3))), rng),
            "compound",
            f"{source} joined",
            (source,),
        )
        for _ in range(count if len(asked) > 2 else 0)
    ]


def _chained(source: str, chains: Chains, rng: random.Random, count: int) -> list[RoutedQuestion]:
    """Return at most five questions of each frame."""
    frames = [frame for frame in chains.frames for _ in range(5)]
    return [
        RoutedQuestion(chains.framed(*frame), "complex", f"{source} chained", (source,))
        for frame in rng.sample(frames, min(count, len(frames)))
    ]


def _once(rows: Iterable[RoutedQuestion]) -> list[RoutedQuestion]:
    normal = (row._replace(question=normal_form(row.question)) for row in rows)
    return list({row.question: row for row in normal if row.question}.values())


def weights(rows: Sequence[RoutedQuestion]) -> list[float]:
    """Return each row's weight in the loss, with mean 1.

    Routes have equal weight, and within a route a source is weighted by the square root of its
    size.
    """
    sizes: dict[tuple[str, str], int] = {}
    for row in rows:
        sizes[row.route, row.source] = sizes.get((row.route, row.source), 0) + 1
    pulls: dict[str, float] = {}
    for (route, _), size in sizes.items():
        pulls[route] = pulls.get(route, 0.0) + size**0.5
    each = len(rows) / len(pulls)
    return [each * sizes[row.route, row.source] ** -0.5 / pulls[row.route] for row in rows]
