"""The `Classifier` protocol."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from service.domain import RouteName


class Routed(NamedTuple):
    """The likeliest route and its calibrated probability."""

    route: RouteName
    probability: float


class Classifier(Protocol):
    """Routes questions. Raises ConfigurationError when it cannot be had at all, another
    RevelatorError when it failed this time."""

    def problem(self) -> str | None:
        """Why it cannot run, or None. Loads nothing heavy."""

    async def classify(self, question: str) -> Routed: ...

    async def aclose(self) -> None:
        """A second call does nothing."""
