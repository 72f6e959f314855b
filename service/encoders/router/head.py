"""The router's head: two layers on the mean of a MiniLM layer, and the file that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.core.domain import RouteName
from service.core.errors import ConfigurationError
from service.core.files import write_whole
from service.encoders.router.base import ROUTES

FORMAT: Final = 1
SIZE: Final = 384  # of MiniLM's vectors
CARD_FILE: Final = "router.json"
WEIGHTS_FILE: Final = "router.safetensors"


class RouterCard(BaseModel):
    """`router.json`: what must be known to serve the weights beside it.

    `layers`: of MiniLM, whose mean vector is read. `longest`: word pieces; what is beyond is not
    read. `temperature`: the logits are divided by it, so that probabilities are calibrated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    routes: tuple[RouteName, ...] = ROUTES
    layers: int = Field(ge=1, le=6)
    longest: int = Field(ge=8, le=512)
    temperature: float = Field(gt=0)


class Head(NamedTuple):
    """float32: `inner` (hidden, 384), `inner_bias`, `outer` (routes, hidden), `outer_bias`."""

    card: RouterCard
    inner: Any
    inner_bias: Any
    outer: Any
    outer_bias: Any

    def probabilities(self, vectors: Any) -> Any:
        """(questions, 384) to (questions, routes)."""
        import numpy as np  # noqa: PLC0415

        hidden = np.maximum(np.asarray(vectors, np.float32) @ self.inner.T + self.inner_bias, 0)
        logits = (hidden @ self.outer.T + self.outer_bias) / self.card.temperature
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)


def normal_form(question: str) -> str:
    """What is classified of a question: case and a question mark at its end say nothing of its
    route, and in training they would tell the sources apart."""
    return " ".join(question.lower().split()).rstrip("? ")


def read_card(folder: Path) -> RouterCard:
    """Raises ConfigurationError: no checkpoint, or one of another version."""
    path = folder / CARD_FILE
    for needed in (path, folder / WEIGHTS_FILE):
        if not needed.is_file():
            raise ConfigurationError(
                f"there is no router at {folder} ({needed.name} is missing); create one with "
                'revelator train router, or set router.kind = "model"'
            )
    try:
        return RouterCard.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigurationError(
            f"{path}: {place}: {first['msg']}; this version reads format {FORMAT}: train the "
            "router again with revelator train router"
        ) from None


def load_head(folder: Path) -> Head:
    """Raises ConfigurationError where the files are missing, damaged or do not fit each other."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.numpy import load_file  # noqa: PLC0415

    card = read_card(folder)
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
    """Both files."""
    from safetensors.numpy import save  # noqa: PLC0415

    weights = save(dict(zip(Head._fields[1:], head[1:], strict=True)))
    write_whole(folder / WEIGHTS_FILE, weights)
    card = json.dumps(head.card.model_dump(mode="json"), indent=2)
    write_whole(folder / CARD_FILE, f"{card}\n")
