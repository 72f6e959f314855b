"""Which reranker the settings name."""

from __future__ import annotations

from pathlib import Path

from service.retrieval.reranking.base import Reranker
from service.retrieval.reranking.cross_encoder import CrossEncoder
from service.retrieval.reranking.server import WIRES, RerankServer
from service.settings import RerankerSettings


def open_reranker(settings: RerankerSettings) -> Reranker:
    """Connects to nothing and loads nothing yet."""
    if settings.kind == "local":
        return CrossEncoder(Path(settings.model or ""))
    key = settings.key.get_secret_value() if settings.key else None
    return RerankServer(WIRES[settings.kind], settings.url or "", settings.model, key)
