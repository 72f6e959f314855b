"""Where passages are stored and how they are searched."""

from __future__ import annotations

from pydantic import Field

from service.settings.base import Section


class RetrievalSettings(Section):
    elasticsearch_url: str | None = Field(
        None, description="http://[user:password@]host:9200; absent: embedded tantivy."
    )
    elasticsearch_replicas: int = Field(0, ge=0, description="Of each index made from now on.")
    qdrant_url: str | None = Field(
        None, description="http://[:KEY@]host:6333; absent: embedded qdrant-edge."
    )
    embedding_model: str = Field(
        "minilm", description="`minilm`, from the package of extra `local`."
    )
    rrf_k: int = Field(60, ge=1, description="k of reciprocal rank fusion.")
    timeout_s: float = Field(10.0, gt=0, description="Per backend and search.")
