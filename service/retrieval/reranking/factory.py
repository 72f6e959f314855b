"""Which reranker the settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.core.settings import RerankerSettings
from service.retrieval.reranking.base import Reranker
from service.retrieval.reranking.cross_encoder import CrossEncoder
from service.retrieval.reranking.server import WIRES, RerankServer


def open_reranker(
    settings: RerankerSettings, on_resent: Callable[[], None] | None = None
) -> Reranker:
    """Connects to nothing and loads nothing yet. `on_resent` is told of calls sent once more."""
    if settings.kind == "local":
        return CrossEncoder(Path(settings.model or ""))
    return RerankServer(
        WIRES[settings.kind],
        settings.url or "",
        settings.model,
        settings.key,
        settings.ca_file,
        on_resent,
    )
