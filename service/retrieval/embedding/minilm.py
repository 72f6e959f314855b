"""all-MiniLM-L6-v2 on ONNX Runtime, from the files of `service.workshop.compilation.bert`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from service.core.errors import ConfigurationError
from service.core.extras import missing_packages
from service.core.onnx import open_onnx
from service.encoders.in_process import (
    minilm_tokenizer,
    packs,
    padded_rows,
)
from service.retrieval.embedding.base import Vector
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.in_process import Encode, InProcessEmbedder

FOLDER: Final = Path(__file__).parents[2] / "models" / "minilm"
LAYERS: Final = 6
_NEEDED: Final = ("numpy", "onnxruntime", "tokenizers")


def minilm_problem() -> str | None:
    """Return what is not installed and how to install it, or None."""
    return missing_packages("all-MiniLM-L6-v2", _NEEDED, "local")


def minilm_embedder(contract: EmbeddingContract, threads: int) -> InProcessEmbedder:
    """Create the embedder. `contract` may differ from the preset only in prefixes and length."""
    return InProcessEmbedder(contract, lambda: load_encoder(contract, threads), minilm_problem)


def graph_name(layers: int) -> str:
    return f"layers-{layers}.onnx"


def load_encoder(contract: EmbeddingContract, threads: int, layers: int = LAYERS) -> Encode:
    """Load the forward pass through the first `layers` layers. Raises ConfigurationError."""
    tokenizer = minilm_tokenizer()
    if contract.max_length is not None:
        tokenizer.enable_truncation(contract.max_length)
    session = _open_model(FOLDER / graph_name(layers), threads)

    def encode(texts: Sequence[str]) -> list[Vector]:
        tokens = [item.ids for item in tokenizer.encode_batch(list(texts))]
        vectors: list[Vector] = [[]] * len(texts)
        for part in packs([len(ids) for ids in tokens]):
            ids = padded_rows([tokens[index] for index in part])
            mask = padded_rows([[1] * len(tokens[index]) for index in part])
            made = session.run(None, {"ids": ids, "mask": mask})[0].tolist()
            for index, vector in zip(part, made, strict=True):
                vectors[index] = vector
        return vectors

    return encode


def _open_model(path: Path, threads: int) -> Any:
    try:
        return open_onnx(path, threads)
    except Exception as error:  # the library's errors have no common base
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{path} cannot be opened ({reason}): it, or weights.bin beside it, is missing or "
            "damaged; install revelator again"
        ) from None
