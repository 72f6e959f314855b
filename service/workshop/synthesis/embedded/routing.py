"""Rows of the router: a question and its kind, from the sets, from facts and from owners."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from service.core.domain import RouteName
from service.workshop.facts.questions import Maker
from service.workshop.facts.routes import Chains
from service.workshop.facts.rows import Row
from service.workshop.facts.wordings import join_questions, vary_surface
from service.workshop.synthesis.embedded.owners import Owners
from service.workshop.synthesis.embedded.prompts import Prompts
from service.workshop.synthesis.embedded.sets import Sets

ROUTES: Final[tuple[RouteName, ...]] = ("direct", "single", "compound", "complex")
OF_OWNERS: Final = {"single": 0.3, "compound": 0.2, "complex": 0.12}


class Routing:
    """Draws the four kinds alike."""

    def __init__(self, sets: Sets, maker: Maker, prompts: Prompts, rng: random.Random) -> None:
        self.maker, self.prompts, self.rng = maker, prompts, rng
        self.owners = Owners(rng)
        self.asked: dict[RouteName, list[str]] = {route: [] for route in ROUTES}
        for row in sets.questions("routing"):
            self.asked[row["kind"]].append(row["question"])
        self.asked["direct"] += [row["question"] for row in sets.questions("commonsenseqa")]
        self.asked["single"] += [row["question"] for row in sets.questions("boolq")]
        self.asked["complex"] += [row["question"] for row in sets.questions("strategyqa")]
        self.chains = Chains(sets.facts, self.asked["single"], rng)

    def route(self) -> Row:
        route = self.rng.choice(ROUTES)
        question, written = self.question(route)
        return self.prompts.route(vary_surface(question, self.rng), route, (), written=written)

    def question(self, route: RouteName) -> tuple[str, bool]:
        """A question of one kind, and whether people wrote it."""
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
        """Two or three questions that may be typed as one, each with its mark."""
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
