"""The learned router: the first layers of MiniLM on ONNX Runtime, and a head on their mean."""

from __future__ import annotations

from pathlib import Path

from service.errors import ConfigurationError
from service.retrieval.embedding.in_process import InProcessEmbedder
from service.retrieval.embedding.minilm import load_encoder, missing_packages
from service.retrieval.embedding.presets import MINILM
from service.routing.base import Routed
from service.routing.head import RouterCard, load_head, normal_form


def encoder_of(card: RouterCard, threads: int) -> InProcessEmbedder:
    """Mean vectors after the card's layers; loaded at the first use."""
    contract = MINILM.model_copy(update={"max_length": card.longest})
    return InProcessEmbedder(
        contract, lambda: load_encoder(contract, threads, card.layers), missing_packages
    )


class MinilmClassifier:
    """The head of a folder; its encoder is loaded at the first question."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Raises ConfigurationError where a package or a file is missing or damaged."""
        if problem := missing_packages():
            raise ConfigurationError(problem)
        self._head = load_head(folder)
        self._encoder = encoder_of(self._head.card, threads)

    async def classify(self, question: str) -> Routed:
        vectors = await self._encoder.embed_queries([normal_form(question)])
        (chances,) = self._head.probabilities(vectors)
        best = int(chances.argmax())
        return Routed(self._head.card.routes[best], float(chances[best]))
