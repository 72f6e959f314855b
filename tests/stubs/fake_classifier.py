"""A classifier that says what it is told to."""

from __future__ import annotations

from service.domain import RouteName
from service.routing.base import Routed


class FakeClassifier:
    def __init__(self, route: RouteName, probability: float) -> None:
        self.says = Routed(route, probability)
        self.asked: list[str] = []

    async def classify(self, question: str) -> Routed:
        self.asked.append(question)
        return self.says
