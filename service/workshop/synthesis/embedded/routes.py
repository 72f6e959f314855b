"""Rows of the router: questions with their routes, from datasets, from facts, and about private
documents.

Owners of documents ask about names that are not public, about "our" things, opening hours, prices
and codes. Such questions need a search, however ordinary their words are. The wordings are in
`owners.toml`; the last two of `single` and of `complex` are never used for training.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from service.core.domain import RouteName
from service.workshop.facts.names import syllable_name
from service.workshop.facts.questions import Maker
from service.workshop.facts.routes import Chains
from service.workshop.facts.rows import TrainingRow
from service.workshop.facts.wordings import join_questions, read_toml, vary_surface, wordings
from service.workshop.synthesis.embedded.prompts import RowMaker
from service.workshop.synthesis.embedded.sets import Sets

ROUTES: Final[tuple[RouteName, ...]] = ("direct", "single", "compound", "complex")
OF_OWNERS: Final = {"single": 0.3, "compound": 0.2, "complex": 0.12}


class Routing:
    """Draws questions of the four routes with equal probability."""

    def __init__(self, sets: Sets, maker: Maker, prompts: RowMaker, rng: random.Random) -> None:
        self.maker, self.prompts, self.rng = maker, prompts, rng
        self.owners = Owners(rng)
        self.asked: dict[RouteName, list[str]] = {route: [] for route in ROUTES}
        for row in sets.questions("routing"):
            self.asked[row["kind"]].append(row["question"])
        self.asked["direct"] += [row["question"] for row in sets.questions("commonsenseqa")]
        self.asked["single"] += [row["question"] for row in sets.questions("boolq")]
        self.asked["complex"] += [row["question"] for row in sets.questions("strategyqa")]
        self.chains = Chains(sets.facts, self.asked["single"], rng)

    def route(self) -> TrainingRow:
        route = self.rng.choice(ROUTES)
        question, written = self.question(route)
        return self.prompts.route(vary_surface(question, self.rng), route, (), written=written)

    def question(self, route: RouteName) -> tuple[str, bool]:
        """Return a question of one route, and whether people wrote it."""
        if self.rng.random() < OF_OWNERS.get(route, 0.0):
            made: dict[str, Callable[[], str]] = {
                "single": self.owners.single,
                "compound": self.owners.compound,
                "complex": self.owners.complex,
            }
            return made[route](), False
        if route == "compound":
            return join_questions(self.parts(), self.rng), False
        if route == "complex" and self.rng.random() < 0.25:
            return self._made_complex(), False
        if route == "single" and self.rng.random() < 0.15:
            return self.maker.single().question, False
        return self.rng.choice(self.asked[route]), True

    def parts(self) -> list[str]:
        """Return two or three questions that can be combined into one, each with its question
        mark."""
        draw, size = self.rng.random(), self.rng.choices((2, 3), (3, 1))[0]
        if draw < 0.45:
            parts = [self.rng.choice(self.asked["single"]) for _ in range(size)]
        elif draw < 0.55:
            parts = [self.owners.single() for _ in range(size)]
        else:
            parts = [hop.question for hop in self.maker.compound().hops]
        return [f"{part.rstrip('?. ')}?" for part in parts]

    def _made_complex(self) -> str:
        draw = self.rng.random()
        if draw < 0.3:
            return self.maker.bridge().question
        if draw < 0.6:
            return self.maker.comparison().question
        return self.chains.question()


TEXTS: Final[dict[str, list[str]]] = read_toml(Path(__file__).with_name("owners.toml"))


class Owners:
    """Draws questions about private documents. `unseen` selects the wordings that are never used
    for training."""

    def __init__(self, rng: random.Random, *, unseen: bool = False) -> None:
        self.rng, self.unseen = rng, unseen

    def single(self) -> str:
        return self._filled("single")

    def complex(self) -> str:
        return self._filled("complex")

    def compound(self) -> str:
        """Return a combination of two questions; in half of the cases both are about the same
        thing."""
        if self.rng.random() < 0.5:
            return self.referring()[0]
        return join_questions([self.single(), self.single()], self.rng)

    def referring(self) -> tuple[str, list[str]]:
        """Return a question whose second half uses "it" or "they", and its parts, which contain the
        name."""
        texts = self.rng.choice(wordings(TEXTS["referring"], unseen=self.unseen))
        first, then, alone = (part.strip() for part in self._fill(texts).split("|"))
        joint = self.rng.choice((" and ", ", and ", " and "))
        return f"{first}{joint}{then}?", [f"{first}?", f"{alone}?"]

    def _filled(self, kind: str) -> str:
        return self._fill(self.rng.choice(wordings(TEXTS[kind], unseen=self.unseen)))

    def _fill(self, wording: str) -> str:
        return wording.format_map(
            {
                "place": self._one("places"), "place2": self._one("places"),
                "thing": self._one("things"), "part": self._one("parts"),
                "role": self._one("roles"), "day": self._one("days"),
                "feature": self._one("features"), "org": self._firm(), "org2": self._firm(),
                "person": self._person(), "person2": self._person(), "beer": self._beer(),
                "beer2": self._beer(), "product": self._name(), "drug": self._name(),
                "town": self._name(), "model": self._model(), "code": self._code(),
                "number": str(self.rng.randint(2, 9999)),
                "version": f"{self.rng.randint(0, 9)}.{self.rng.randint(0, 20)}",
            }
        )  # fmt: skip

    def _one(self, kind: str) -> str:
        return self.rng.choice(TEXTS[kind])

    def _name(self) -> str:
        return syllable_name(self.rng)

    def _firm(self) -> str:
        tail = f" {self.rng.choice(TEXTS['firms'])}" if self.rng.random() < 0.85 else " & Sons"
        return self._name() + tail

    def _person(self) -> str:
        return f"{self._name()} {self._name()}" if self.rng.random() < 0.7 else self._name()

    def _beer(self) -> str:
        return f"{self._name()} {self.rng.choice(TEXTS['beers'])}"

    def _model(self) -> str:
        letters = "".join(self.rng.choices("ABCDEHKLMPRSTVXZ", k=self.rng.randint(1, 3)))
        return f"{letters}{self.rng.choice(('', '-'))}{self.rng.randint(2, 9900)}"

    def _code(self) -> str:
        lead = self.rng.choice(("E", "E-", "F", "ERR", "0x", "", "H", "P0"))
        return f"{lead}{self.rng.randint(1, 999)}"
