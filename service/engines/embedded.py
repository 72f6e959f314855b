"""Compiled models on ONNX Runtime. Importing this module imports neither that nor numpy.

A model's folder holds a card (`embedded.json`) and a graph. Inputs: `ids` and `positions` (rows,
tokens) in int64; `ends` (rows,) in int32, the last filled position of each row after the pass;
`total`, the largest of them plus 1; `wanted` (n,) in int64, places in the flattened (rows *
tokens) whose logits are computed; and the cache, per layer (rows, kv_heads, room, size), which is
written in place. Outputs: `logits` (n, vocabulary), and `queries` (rows, tokens, heads * size) of
the last layer, rotated like the keys in its cache.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from service.core.errors import EngineFailure
from service.core.extras import missing_packages
from service.core.validation import explain
from service.engines.base import Capabilities
from service.engines.in_process import InProcessGenerator

if TYPE_CHECKING:
    from service.engines.decoding import Network

CARD_FILE: Final = "embedded.json"
MODEL_FILE: Final = "model.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
FORMAT: Final = 1


class ModelShape(BaseModel):
    """The sizes of a Llama. `context` counts the tokens of prompt and output together."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=2)
    vocabulary: int = Field(ge=1)
    context: int = Field(ge=2)


class EmbeddedCard(BaseModel):
    """The card of a compiled model.

    `digests` are the SHA-256 sums of the files beside it. `chat_template` is a Jinja template;
    without one, messages are joined by line breaks. `start` is put before a raw prompt, and the
    tokens `ends` end an output. What else the file says is for information. `config.json` has the
    notes on training (see `in_process`).
    """

    format: Literal[1] = FORMAT
    digests: dict[str, str]
    shape: ModelShape
    start: int | None
    ends: list[int]
    special_tokens: dict[str, str] = {}
    chat_template: str | None = None


def read_card(name: str, folder: Path) -> EmbeddedCard:
    """Read the card of engine `name`. Raises EngineFailure with the file and the remedy."""
    path = folder / CARD_FILE
    if not path.is_file():
        raise EngineFailure(
            f"engine {name!r}: there is no embedded model at {folder} ({CARD_FILE} is missing); "
            f"leave out engines.{name}.model to use the shipped model, and serve a folder of "
            "float weights with kind = local"
        )
    try:
        return EmbeddedCard.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise EngineFailure(
            f"engine {name!r}: {path} cannot be read: {explain(error.errors())}; it was created by "
            "another version, or was changed: install again"
        ) from None


def check_files(name: str, folder: Path, card: EmbeddedCard) -> None:
    """Compare the files with their digests. Raises EngineFailure if one is missing or differs."""
    for file, expected in card.digests.items():
        path = folder / file
        if not path.is_file():
            raise EngineFailure(
                f"engine {name!r}: {path} is missing; copy the whole folder, or install again"
            )
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != expected:
            raise EngineFailure(
                f"engine {name!r}: {path} ({path.stat().st_size:,} bytes) is damaged, or does not "
                f"belong to the {CARD_FILE} beside it (SHA-256 {found[:12]}…, expected "
                f"{expected[:12]}…); copy the whole folder, or install again"
            )


QUESTION_TOKENS: Final = 192  # about 800 characters of English
PACKAGES: Final = ("jinja2", "numpy", "onnxruntime")
SHIPPED: Final = Path(__file__).parents[1] / "models" / "language"


class EmbeddedGenerator(InProcessGenerator):
    """The shipped model, or one of the same form in the folder `settings.model`."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, question_tokens=QUESTION_TOKENS)

    @property
    def _model(self) -> str:
        return self._settings.model or str(SHIPPED)

    def _verify(self) -> None:
        """Compare the files with their digests, and look for the packages."""
        folder = Path(self._model)
        check_files(self._name, folder, read_card(self._name, folder))
        what = f"engine {self._name!r} of kind embedded"
        if problem := missing_packages(what, PACKAGES, "local"):
            raise EngineFailure(f"{problem}, or set engines.{self._name}.kind")

    def _load(self) -> tuple[Network, Any, frozenset[int]]:
        from tokenizers import Tokenizer  # noqa: PLC0415

        from service.engines.compiled import CompiledTokenizer, OnnxNetwork  # noqa: PLC0415

        folder = Path(self._model)
        card = read_card(self._name, folder)
        threads = max(1, min(os.cpu_count() or 1, self._threads))
        network = OnnxNetwork(folder / MODEL_FILE, card.shape, threads=threads)
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        return network, CompiledTokenizer(tokenizer, card), frozenset(card.ends)
