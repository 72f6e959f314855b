"""A classifier that says what it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from service.domain import RouteName
from service.routing.base import ROUTES, Routed


class FakeClassifier:
    def __init__(self, route: RouteName, probability: float) -> None:
        self.says = Routed(route, probability)
        self.asked: list[str] = []

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        self.allowed = list(allowed)
        self.asked.append(question)
        return self.says
