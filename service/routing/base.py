"""The `Classifier` protocol."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from service.domain import RouteName


class Routed(NamedTuple):
    """The likeliest route and its calibrated probability."""

    route: RouteName
    probability: float


class Classifier(Protocol):
    """Routes questions. One that cannot run here cannot be opened."""

    async def classify(self, question: str) -> Routed:
        """Raises RevelatorError where it failed this time."""
