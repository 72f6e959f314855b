"""A classifier that says what it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.domain import RouteName
from service.encoders.base import ROUTES, Routed


class FakeClassifier:
    """`second` is what it says where its route is not allowed; absent, it says its route anyway."""

    def __init__(
        self, route: RouteName, probability: float, second: RouteName | None = None
    ) -> None:
        self.says = Routed(route, probability)
        self.second = second
        self.asked: list[str] = []

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        self.allowed = list(allowed)
        self.asked.append(question)
        if self.second and self.says.route not in allowed:
            return Routed(self.second, self.says.probability)
        return self.says
