"""The learned router: the first layers of MiniLM on ONNX Runtime, and a head of two layers on the
mean of their output.

It chooses the route of a question without calling a language model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field

from service.core.domain import Model, RouteName
from service.core.errors import ConfigurationError
from service.core.files import write_whole
from service.encoders.base import ROUTES, Routed
from service.encoders.in_process import open_chosen, read_card, softmax
from service.retrieval.embedding.contract import MINILM
from service.retrieval.embedding.embedders import InProcessEmbedder, minilm_embedder, minilm_problem

FORMAT: Final = 1
SIZE: Final = 384  # size of MiniLM's vectors
CARD_FILE: Final = "router.json"
WEIGHTS_FILE: Final = "router.safetensors"
SHIPPED: Final = Path(__file__).parents[1] / "models" / "router"


class RouterCard(Model):
    """The content of `router.json`, which describes the weights beside it.

    `layers` is the number of MiniLM layers, whose mean output is the input of the head. `longest`
    is the number of word pieces that are read. The logits are divided by `temperature`, which
    calibrates the probabilities.
    """

    format: Literal[1] = 1
    routes: tuple[RouteName, ...] = ROUTES
    layers: int = Field(ge=1, le=6)
    longest: int = Field(ge=8, le=512)
    temperature: float = Field(gt=0)


class Head(NamedTuple):
    """The weights, in float32: `inner` (hidden, 384), `inner_bias`, `outer` (routes, hidden) and
    `outer_bias`."""

    card: RouterCard
    inner: Any
    inner_bias: Any
    outer: Any
    outer_bias: Any

    def probabilities(self, vectors: Any) -> Any:
        """Return (questions, routes) for vectors (questions, 384)."""
        import numpy as np  # noqa: PLC0415

        hidden = np.maximum(np.asarray(vectors, np.float32) @ self.inner.T + self.inner_bias, 0)
        return softmax((hidden @ self.outer.T + self.outer_bias) / self.card.temperature)


def normal_form(question: str) -> str:
    """Return the text that is classified. Case and a final question mark are removed: they do not
    depend on the route, and in training they would identify the dataset."""
    return " ".join(question.lower().split()).rstrip("? ")


def load_head(folder: Path) -> Head:
    """Return the head of a folder. Raises ConfigurationError if its files are missing, damaged or
    inconsistent."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.numpy import load_file  # noqa: PLC0415

    card = read_card(RouterCard, "router", folder, (CARD_FILE, WEIGHTS_FILE))
    path = folder / WEIGHTS_FILE
    try:
        tensors = load_file(path)
        head = Head(card, *(tensors[name] for name in Head._fields[1:]))
    except (SafetensorError, KeyError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({error}); copy it again, or train it again"
        ) from None
    hidden = head.inner.shape[0]
    shapes = [(hidden, SIZE), (hidden,), (len(card.routes), hidden), (len(card.routes),)]
    if [tensor.shape for tensor in head[1:]] != shapes:
        raise ConfigurationError(f"{path} does not match {CARD_FILE}; copy both from the same run")
    return head


def save_head(head: Head, folder: Path) -> None:
    """Write the card and the weights."""
    from safetensors.numpy import save  # noqa: PLC0415

    weights = save(dict(zip(Head._fields[1:], head[1:], strict=True)))
    write_whole(folder / WEIGHTS_FILE, weights)
    card = json.dumps(head.card.model_dump(mode="json"), indent=2)
    write_whole(folder / CARD_FILE, f"{card}\n")


def encoder_of(card: RouterCard, threads: int = 1) -> InProcessEmbedder:
    """Return the encoder whose vectors the head reads. It is loaded at its first use."""
    contract = MINILM.model_copy(update={"max_length": card.longest})
    return minilm_embedder(contract, threads, card.layers)


class Classifier:
    """A classifier with the head of a folder. Its encoder is loaded at the first question."""

    def __init__(self, folder: Path) -> None:
        """Raise ConfigurationError if a package or a file is missing or damaged."""
        if problem := minilm_problem():
            raise ConfigurationError(problem)
        self._head = load_head(folder)
        self._encoder = encoder_of(self._head.card)

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        """Return the most likely of the allowed routes, and its probability among them. Raises
        RevelatorError if the classification failed."""
        vectors = await self._encoder.embed_queries([normal_form(question)])
        (chances,) = self._head.probabilities(vectors)
        return likeliest(
            dict(zip(self._head.card.routes, map(float, chances), strict=True)), allowed
        )


def likeliest(chances: Mapping[RouteName, float], allowed: Sequence[RouteName]) -> Routed:
    """Return the most likely of the allowed routes, with its probability among them. If the head
    knows none of them, any of them is returned with probability 0."""
    left = {route: chance for route, chance in chances.items() if route in allowed}
    if not sum(left.values()):
        return Routed(allowed[0], 0.0)
    best = max(left, key=lambda route: left[route])
    return Routed(best, left[best] / sum(left.values()))


def open_classifier(
    chosen: Path | Literal["none", "shipped"] | None, *, small: bool = False
) -> Classifier | None:
    """Return the classifier, or None if the Revelator's language model chooses the route
    (`open_chosen`). No encoder is loaded."""
    return open_chosen(Classifier, chosen, SHIPPED, "routes.classifier", small=small)
