"""The `Classifier` protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from service.core.domain import RouteName

ROUTES: Final[tuple[RouteName, ...]] = ("direct", "single", "compound", "complex")


class Routed(NamedTuple):
    """The most likely route and its calibrated probability."""

    route: RouteName
    probability: float


class Classifier(Protocol):
    """Classifies questions by route. One that cannot run here cannot be opened."""

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        """Return the most likely of the allowed routes, and its probability among them. Raises
        RevelatorError if it failed this time."""
