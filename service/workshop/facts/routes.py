"""Questions with their routes: people's own, and synthesised ones, from one side of the split.

All in the normal form that the router reads, so that no set is known by its looks. The sources are
CommonsenseQA (`direct`: METHODS.md §1.5 draws that class from it), NQ-open, WebQuestions and SQuAD
(`single`), MuSiQue and StrategyQA (`complex`), questions made from passages, and questions of
people joined to compound ones or with a chain of relations in the place of a name.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from service.core.domain import RouteName
from service.encoders.router.head import normal_form
from service.workshop.facts.chains import Chains
from service.workshop.facts.corpora import load_passages, load_questions
from service.workshop.facts.facts import Fact, all_facts
from service.workshop.facts.questions import join_questions
from service.workshop.facts.splits import normalise
from service.workshop.facts.substitution import Names
from service.workshop.facts.synthesis import Maker

REAL: Final[dict[str, RouteName]] = {
    "commonsenseqa": "direct",
    "nq_open": "single",
    "webquestions": "single",
    "squad": "single",
    "musique": "complex",
    "strategyqa": "complex",
}
ASKED: Final = tuple(source for source, route in REAL.items() if route == "single")
MADE: Final = 2500  # questions of each synthesised form
JOINED: Final = 800  # of each set of people's questions
CHAINED: Final = 1500  # at most, of each set
VALIDATES_BELOW: Final = 26  # of 256: the share of the training side that sets the temperature


class RoutedQuestion(NamedTuple):
    """`source`: a set of people's questions, or how it was made; `parents`: sets it is made of."""

    question: str
    route: RouteName
    source: str
    parents: tuple[str, ...] = ()

    def drawn_from(self, sources: Iterable[str]) -> bool:
        return any(source in {self.source, *self.parents} for source in sources)

    @property
    def validates(self) -> bool:
        """Of the training side: whether it sets the temperature and trains nothing."""
        return hashlib.sha256(normalise(self.question).encode()).digest()[1] < VALIDATES_BELOW


def routed_questions(
    data: Path, *, held_out: bool = False, seed: int = 0, scale: float = 1.0
) -> list[RoutedQuestion]:
    """All of one side, without repeats, in an order that the seed fixes. `scale` changes how many
    are synthesised. On the held-out side wordings are unseen ones and names are real."""
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
    """From passages alone."""
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
    """Two or three questions of people typed as one."""
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
    """At most five of each frame."""
    frames = [frame for frame in chains.frames for _ in range(5)]
    return [
        RoutedQuestion(chains.framed(*frame), "complex", f"{source} chained", (source,))
        for frame in rng.sample(frames, min(count, len(frames)))
    ]


def _once(rows: Iterable[RoutedQuestion]) -> list[RoutedQuestion]:
    normal = (row._replace(question=normal_form(row.question)) for row in rows)
    return list({row.question: row for row in normal if row.question}.values())


def weights(rows: Sequence[RoutedQuestion]) -> list[float]:
    """Of each row in the loss, 1 on average: routes weigh alike, and within a route a source as
    the root of its size."""
    sizes: dict[tuple[str, str], int] = {}
    for row in rows:
        sizes[row.route, row.source] = sizes.get((row.route, row.source), 0) + 1
    pulls: dict[str, float] = {}
    for (route, _), size in sizes.items():
        pulls[route] = pulls.get(route, 0.0) + size**0.5
    each = len(rows) / len(pulls)
    return [each * sizes[row.route, row.source] ** -0.5 / pulls[row.route] for row in rows]
