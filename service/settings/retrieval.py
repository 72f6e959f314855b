"""Where passages are stored and how they are searched."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from service.settings.base import Section

Pooling = Literal["mean", "cls"]
Distance = Literal["cosine", "dot"]


class EmbeddingSettings(Section):
    """Where the embedding model runs, and what differs from its preset. A model without a preset
    has no prefixes, the mean of its last layer, normalised, cosine and 512 tokens."""

    url: str | None = Field(
        None, description="Base URL with /v1 of a server that has `/embeddings`; absent: here."
    )
    key: SecretStr | None = Field(None, description="Of that server, sent as a bearer token.")
    location: str | None = Field(
        None, description="Folder of the model, or its name at the server, if not the model's name."
    )
    timeout_s: float = Field(30.0, gt=0, description="Of one request to the server.")
    batch: int = Field(32, ge=1, le=2048, description="Texts in one request to the server.")
    encoding: Literal["float", "base64"] = Field(
        "float", description="How the server is asked to write vectors; base64 is shorter."
    )
    threads: int | None = Field(
        None, ge=1, description="Of a model that runs here; absent: half the cores, at most 4."
    )
    query_prefix: str | None = Field(None, description="Put before every query.")
    passage_prefix: str | None = Field(None, description="Put before every passage.")
    pooling: Pooling | None = Field(
        None, description="`mean` over the tokens, or the first one (`cls`)."
    )
    normalise: bool | None = Field(None, description="Scale vectors to length 1.")
    distance: Distance | None = Field(None, description="How the store compares vectors.")
    max_length: int | None = Field(None, ge=8, description="Tokens read of a text, prefix and all.")
    dimension: int | None = Field(
        None, ge=1, description="Numbers in a vector; needed where a server has no preset's model."
    )

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no http:// or https:// URL")
        return url.rstrip("/") if url else None


class RetrievalSettings(Section):
    elasticsearch_url: str | None = Field(
        None, description="http://[user:password@]host:9200; absent: embedded tantivy."
    )
    elasticsearch_replicas: int | None = Field(
        None,
        ge=0,
        description="Of each index made from now on; absent: 1 where the cluster has two nodes, or "
        "what component template `revelator@custom` says.",
    )
    qdrant_url: str | None = Field(
        None, description="http://[:KEY@]host:6333; absent: embedded qdrant-edge."
    )
    embedding_model: str = Field(
        "minilm",
        description="`minilm`, from the package of extra `local`; another preset (`e5-base-v2`, "
        "`contriever-msmarco`, `bge-base-en-v1.5`, …); or a model's folder or name.",
    )
    embedding: EmbeddingSettings = EmbeddingSettings()
    rrf_k: int = Field(60, ge=1, description="k of reciprocal rank fusion.")
    timeout_s: float = Field(10.0, gt=0, description="Per backend and search.")
