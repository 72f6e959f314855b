"""Opens the embedder that the settings name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from service.core.errors import ConfigurationError
from service.core.settings import RetrievalSettings
from service.retrieval.embedding.base import Embedder
from service.retrieval.embedding.contract import MINILM, PRESETS, EmbeddingContract, preset_of
from service.retrieval.embedding.hashing import HashingEmbedder
from service.retrieval.embedding.minilm import minilm_embedder
from service.retrieval.embedding.transformers import dimension_of, local_embedder

MOST_THREADS = 4  # more threads hardly speed up a batch of short texts


def open_embedder(
    settings: RetrievalSettings,
    on_resent: Callable[[], None] | None = None,
    threads: int | None = None,
) -> Embedder:
    """Create the embedder without loading or connecting. `on_resent` is called for repeated calls.
    A model in this process uses `threads`, by default half of the cores.

    Raises ConfigurationError.
    """
    if settings.embedding_model == "hashing":
        return HashingEmbedder()
    contract, own = contract_of(settings), settings.embedding
    threads = threads or default_threads()
    if own.url:
        from service.retrieval.embedding.http import HttpEmbedder  # noqa: PLC0415

        return HttpEmbedder(contract, own, on_resent, settings.ca_files)
    if contract.model == MINILM.model and own.location is None:
        _check_minilm(contract)
        return minilm_embedder(contract, threads)
    return local_embedder(contract, own.location or contract.model, threads)


def _check_minilm(contract: EmbeddingContract) -> None:
    for field in ("pooling", "distance", "dimension"):
        if getattr(contract, field) != getattr(MINILM, field):
            raise ConfigurationError(
                f"retrieval.embedding.{field} does not apply to the shipped {MINILM.model}; "
                "remove it, or set retrieval.embedding.location to a folder of the model"
            )


def default_threads() -> int:
    """Return half of the machine's cores, because a language model may run beside it."""
    return max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))


def contract_of(settings: RetrievalSettings) -> EmbeddingContract:
    """Return the preset with the changes from the settings. Raises ConfigurationError."""
    name, own = settings.embedding_model, settings.embedding
    changes = own.model_dump(include=set(EmbeddingContract.model_fields), exclude_none=True)
    if own.distance:
        changes["normalise"] = own.distance == "cosine"
    preset = preset_of(name)
    if preset is not None:
        return preset.model_copy(update=changes)
    folder = own.location or name
    if own.url is None and "/" not in folder and not Path(folder).is_dir():
        raise ConfigurationError(
            f"retrieval.embedding_model is {name!r}, which is not a preset "
            f"({', '.join(PRESETS)}), a folder, or an owner/name of the hub"
        )
    if own.url is None and Path(folder).is_dir() and not (Path(folder) / "config.json").is_file():
        setting = "embedding.location" if own.location else "embedding_model"
        raise ConfigurationError(
            f"retrieval.{setting}: there is no model in the folder {folder} (config.json is "
            "missing); download the model again, or set another folder"
        )
    dimension = own.dimension or dimension_of(folder)
    if dimension is None:
        raise ConfigurationError(
            f"retrieval.embedding_model is {name!r}; set retrieval.embedding.dimension to the "
            "size of its vectors"
        )
    return EmbeddingContract.model_validate({"model": name, **changes, "dimension": dimension})
