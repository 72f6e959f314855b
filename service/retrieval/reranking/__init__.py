"""Rerankers: a cross-encoder reads query and passage together, on a server or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from service.core.settings import RerankerSettings
from service.retrieval.reranking.cross_encoder import CrossEncoder
from service.retrieval.reranking.ordering import Reranker, Reranking
from service.retrieval.reranking.server import WIRES, RerankServer

__all__ = ["Reranker", "Reranking", "open_reranker"]


def open_reranker(
    settings: RerankerSettings,
    on_resent: Callable[[], None] | None = None,
    ca_files: Sequence[Path] = (),
) -> Reranker:
    """Create the reranker without loading or connecting. `on_resent` is called for repeated
    calls.
    """
    if settings.kind == "local":
        return CrossEncoder(Path(settings.model or ""))
    return RerankServer(
        WIRES[settings.kind],
        settings.url or "",
        settings.model,
        settings.key,
        ca_files,
        on_resent,
    )
