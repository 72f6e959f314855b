"""The learned router: the first layers of MiniLM on ONNX Runtime, and a head on their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from service.core.domain import RouteName
from service.core.errors import ConfigurationError
from service.encoders.router.base import ROUTES, Routed
from service.encoders.router.head import RouterCard, load_head, normal_form
from service.retrieval.embedding.contract import MINILM
from service.retrieval.embedding.in_process import InProcessEmbedder
from service.retrieval.embedding.minilm import load_encoder, minilm_problem


def encoder_of(card: RouterCard, threads: int = 1) -> InProcessEmbedder:
    """Mean vectors after the card's layers; loaded at the first use."""
    contract = MINILM.model_copy(update={"max_length": card.longest})
    return InProcessEmbedder(
        contract, lambda: load_encoder(contract, threads, card.layers), minilm_problem
    )


class MinilmClassifier:
    """The head of a folder; its encoder is loaded at the first question."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError where a package or a file is missing or damaged."""
        if problem := minilm_problem():
            raise ConfigurationError(problem)
        self._head = load_head(folder)
        self._encoder = encoder_of(self._head.card)

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        vectors = await self._encoder.embed_queries([normal_form(question)])
        (chances,) = self._head.probabilities(vectors)
        return likeliest(
            dict(zip(self._head.card.routes, map(float, chances), strict=True)), allowed
        )


def likeliest(chances: Mapping[RouteName, float], allowed: Sequence[RouteName]) -> Routed:
    """The likeliest route of those allowed, with its probability among them; where the head knows
    none of them, any, with 0."""
    left = {route: chance for route, chance in chances.items() if route in allowed}
    if not sum(left.values()):
        return Routed(allowed[0], 0.0)
    best = max(left, key=lambda route: left[route])
    return Routed(best, left[best] / sum(left.values()))
