"""Settings of the stores and of searching."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from service.core.settings.base import Section, SectionWithSecrets, ServerUrl

Pooling = Literal["mean", "cls"]
Distance = Literal["cosine", "dot"]
Quantization = Literal["none", "scalar", "binary"]
LOAD_S = 10.0  # seconds for an embedding model in this process, including loading


class EmbeddingSettings(SectionWithSecrets):
    """Where the embedding model runs, and how it differs from its preset.

    A model without a preset uses no prefixes, mean pooling, normalised vectors, cosine distance and
    512 tokens.
    """

    url: ServerUrl = Field(
        None,
        description="Base URL, including /v1, of a server that provides `/embeddings`. Default: "
        "embed in this process.",
        repr=False,
    )
    key: SecretStr | None = Field(
        None, description="API key of the server, sent as a bearer token."
    )
    query_prefix: str | None = Field(None, description="Text put before every query.")
    passage_prefix: str | None = Field(None, description="Text put before every passage.")
    pooling: Pooling | None = Field(
        None, description="`mean`: average over the tokens. `cls`: the first token."
    )
    distance: Distance | None = Field(
        None,
        description="`cosine` or `dot`: how the store compares vectors. Default: that of the "
        "preset, else `cosine`.",
    )
    max_length: int | None = Field(
        None, ge=8, description="Maximum tokens of a text, including its prefix."
    )
    dimension: int | None = Field(
        None, ge=1, description="Vector size. Required if a server's model has no preset."
    )


class RerankerSettings(SectionWithSecrets):
    """A cross-encoder that reorders the fused passages of `hybrid`.

    If it fails, answers keep the fused order, and
    `revelator_retrieval_failures_total{backend="reranker"}` counts the failure.
    """

    kind: Literal["vllm", "tei", "local"] = Field(
        description="`vllm` (/v1/rerank): a vLLM server. `tei` (/rerank): a "
        "text-embeddings-inference server. `local`: a model in this process (extra "
        "`transformers`)."
    )
    url: ServerUrl = Field(
        None, description="URL of the server, without a path: http://host:8000.", repr=False
    )
    key: SecretStr | None = Field(
        None, description="API key of the server, sent as a bearer token."
    )
    model: str | None = Field(
        None, description="Name of the model at the vLLM server, or the model's folder for `local`."
    )
    top_n: int = Field(
        30,
        ge=1,
        description="Number of fused passages that are scored. At least top_k are always scored.",
    )

    @model_validator(mode="after")
    def _place_is_named(self) -> Self:
        if self.kind == "local" and self.model is None:
            raise ValueError("kind `local` needs `model`, the folder of a cross-encoder")
        if self.kind != "local" and not self.url:
            raise ValueError(f"kind `{self.kind}` needs `url`, such as http://host:8000")
        return self


class IngestSettings(Section):
    keep_files: bool = Field(
        False,
        description="Keep the originals of files that are uploaded, or ingested without a server, "
        "in the data directory, where citations open them, and the feedback on answers with their "
        "questions and passages. Not with `retrieval.elasticsearch_url`, since other gateways "
        "would not have them.",
    )


class RetrievalSettings(SectionWithSecrets):
    elasticsearch_url: ServerUrl = Field(
        None,
        description="URL of Elasticsearch, http://[user:password@]host:9200. Default: "
        "embedded tantivy.",
        repr=False,
    )
    elasticsearch_key: SecretStr | None = Field(
        None,
        description="Encoded API key, as Elasticsearch returns it; if the URL names a user, "
        "http://user@host:9200, that user's password.",
    )
    qdrant_url: ServerUrl = Field(
        None,
        description="URL of Qdrant 1.16 or newer, http://[:KEY@]host:6333. Default: embedded "
        "qdrant-edge.",
        repr=False,
    )
    qdrant_key: SecretStr | None = Field(None, description="API key of Qdrant.")
    qdrant_grpc_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="gRPC port of the same server, usually 6334. gRPC is used if it is set, and "
        "REST otherwise.",
    )
    quantization: Quantization = Field(
        "none",
        description="Keep compressed copies of the vectors, in the memory of Qdrant or mapped from "
        "the disk (embedded), and search them first: "
        "`scalar` (a quarter of the size) or `binary` (a 32nd; for 1,000 dimensions and more). "
        "Applies to collections (Qdrant) or graphs (embedded) built from now on.",
    )
    embedding_model: str = Field(
        "minilm",
        description="The shipped model `minilm` (extra `local`), another preset (`e5-base-v2`, "
        "`contriever-msmarco`, `bge-base-en-v1.5`, …), or the folder or name of a model. "
        "`NAME=PLACE` if the model NAME is in another folder, or has another name at the server.",
    )
    embedding: EmbeddingSettings = EmbeddingSettings()
    dense_weight: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Weight of the dense side in `hybrid`, which adds the normalised scores of "
        "both sides. BM25 has the remainder.",
    )
    timeout_s: float = Field(
        2.0,
        gt=0,
        description="Time limit of one search in one backend, in seconds. A side that "
        "exceeds it is left out of the answer.",
    )
    reranker: RerankerSettings | None = Field(
        None, description="Reranker of `hybrid`. Default: none."
    )

    def search_timeout_s(self, backend: str) -> float:
        """Return the time limit of one call of a backend, named as in the metrics."""
        loaded_here = backend == "embedding" and self.embedding.url is None
        return max(self.timeout_s, LOAD_S) if loaded_here else self.timeout_s
