"""The learned router: the first layers of MiniLM on ONNX Runtime, and a head on their mean."""

from __future__ import annotations

from pathlib import Path

from service.errors import ConfigurationError
from service.retrieval.embedding.in_process import InProcessEmbedder
from service.retrieval.embedding.minilm import load_encoder, missing_packages
from service.retrieval.embedding.presets import MINILM
from service.routing.base import Routed
from service.routing.head import Head, RouterCard, load_head, normal_form, read_card


def encoder_of(card: RouterCard, threads: int) -> InProcessEmbedder:
    """Mean vectors after the card's layers; loaded at the first use."""
    contract = MINILM.model_copy(update={"max_length": card.longest})
    return InProcessEmbedder(
        contract, lambda: load_encoder(contract, threads, card.layers), missing_packages
    )


class MinilmClassifier:
    """Reads the card at once, weights and encoder at the first question."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder = folder
        self._head: Head | None = None
        self._problem: str | None = None
        try:
            self._encoder = encoder_of(read_card(folder), threads)
        except ConfigurationError as error:
            self._problem = error.detail

    def problem(self) -> str | None:
        return self._problem or self._encoder.problem()

    async def classify(self, question: str) -> Routed:
        if problem := self.problem():
            raise ConfigurationError(problem)
        vectors = await self._encoder.embed_queries([normal_form(question)])
        self._head = self._head or load_head(self._folder)
        chances = self._head.probabilities(vectors)[0]
        best = int(chances.argmax())
        return Routed(self._head.card.routes[best], float(chances[best]))

    async def aclose(self) -> None:
        """Nothing to do: the models go with the classifier."""
