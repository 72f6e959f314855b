"""MiniLM's ONNX file: made at the first use, in a second, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import platformdirs
import structlog

from service.retrieval.embedding import minilm_graph

_log = structlog.get_logger(__name__)


def model_file(
    weights: Path, cache: Path | None = None, *, layers: int = minilm_graph.LAYERS
) -> Path | bytes:
    """The file for these weights, cut after `layers`; the model itself where the cache cannot be
    written.

    Several processes may make it at once: each writes its own and renames it into place.
    """
    folder = cache or Path(platformdirs.user_cache_dir("revelator"))
    path = folder / f"minilm-{layers}-{_version(weights)}.onnx"
    if path.is_file():
        return path
    model = minilm_graph.build_model(weights, layers=layers)
    try:
        _write(path, model)
    except OSError as error:
        _log.warning("embedding_model_not_cached", folder=str(folder), why=str(error))
        return model
    return path


def _version(weights: Path) -> str:
    """Changes with the weights and with the code that builds the graph."""
    digest = hashlib.sha256(Path(minilm_graph.__file__).read_bytes())
    with weights.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _write(path: Path, content: bytes) -> None:
    """Atomic: no process ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
