"""Where passages are stored and how they are searched."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from service.settings.base import Section, SectionWithSecrets
from service.settings.urls import checked
from service.settings.vectors import VectorSettings

Pooling = Literal["mean", "cls"]
Distance = Literal["cosine", "dot"]
LOAD_S = 10.0  # that an embedding model in this process may take, loading included


class EmbeddingSettings(SectionWithSecrets):
    """Where the embedding model runs, and what differs from its preset. A model without a preset
    has no prefixes, the mean of its last layer, normalised, cosine and 512 tokens."""

    url: str | None = Field(
        None,
        description="Base URL with /v1 of a server that has `/embeddings`; absent: here.",
        repr=False,
    )
    key: SecretStr | None = Field(None, description="Of that server, sent as a bearer token.")
    key_file: Path | None = Field(None, description="A file that holds the key, in its place.")
    ca_file: FilePath | None = Field(
        None, description="Certificates (PEM) of the authority that signed the server's."
    )
    location: str | None = Field(
        None, description="Folder of the model, or its name at the server, if not the model's name."
    )
    timeout_s: float = Field(30.0, gt=0, description="Of one request to the server.")
    batch: int = Field(32, ge=1, le=2048, description="Texts in one request to the server.")
    window_s: float = Field(
        0.002,
        ge=0,
        le=0.1,
        description="While queries are being embedded, others wait so long to go as one batch.",
    )
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
        return checked(url) if url else None


class BackendSettings(Section):
    timeout_s: float | None = Field(
        None,
        gt=0,
        description="Of one search, its retries included; absent: retrieval.timeout_s, and 10 s "
        "for an embedding model in this process, which may have to be loaded first.",
    )
    concurrency: int = Field(
        64, ge=1, description="Searches that run at once; others wait, within their time."
    )


class BackendsSettings(Section):
    """Limits by backend; only those in use matter."""

    tantivy: BackendSettings = BackendSettings()
    elasticsearch: BackendSettings = BackendSettings()
    qdrant_edge: BackendSettings = BackendSettings()
    qdrant: BackendSettings = BackendSettings()
    embedding: BackendSettings = BackendSettings()

    def of(self, backend: str) -> BackendSettings:
        """Those of a backend by its name in the metrics; the default for any other."""
        own: BackendSettings = getattr(self, backend, None) or BackendSettings()
        return own


class BreakerSettings(Section):
    failures: int = Field(
        5,
        ge=1,
        description="So many failed searches in a row (no connection, no answer in time, 429, 502, "
        "503, 504) open the circuit breaker of a backend: it is not asked for a while.",
    )
    lost_s: float = Field(
        3.0,
        gt=0,
        description="So many seconds in which searches waited for it and none came back open the "
        "circuit breaker too.",
    )
    open_s: float = Field(
        1.0,
        gt=0,
        description="After so long one search tries whether it is back; its question does not wait "
        "for it.",
    )


class CacheSettings(Section):
    query_embeddings: int = Field(
        1000, ge=0, description="Vectors of queries that are remembered; 0: none."
    )
    search_results: int = Field(
        0,
        ge=0,
        description="Searches whose passages are remembered until their collection changes; 0: "
        "none. Only of collections held by tantivy and qdrant-edge: what servers hold may be "
        "changed by another gateway.",
    )


class RerankerSettings(SectionWithSecrets):
    """A cross-encoder that orders the fused passages of `hybrid` anew. While it is out, answers
    keep the fused order; `revelator_retrieval_failures_total{backend="reranker"}` counts it."""

    kind: Literal["vllm", "vllm-score", "tei", "local"] = Field(
        description="`vllm` (/v1/rerank) or `vllm-score` (/score) of a vLLM server; `tei` "
        "(/rerank) of text-embeddings-inference; `local`: a model in this process, extra "
        "`transformers`."
    )
    url: str | None = Field(
        None, description="Of the server, without a path: http://host:8000.", repr=False
    )
    key: SecretStr | None = Field(None, description="Of that server, sent as a bearer token.")
    key_file: Path | None = Field(None, description="A file that holds the key, in its place.")
    ca_file: FilePath | None = Field(
        None, description="Certificates (PEM) of the authority that signed the server's."
    )
    model: str | None = Field(
        None, description="Its name at the vLLM server, or its folder for `local`."
    )
    top_n: int = Field(
        30, ge=1, description="Passages of the fused order that are scored; never less than top_k."
    )
    timeout_s: float = Field(2.0, gt=0, description="Of one search's scores, retries included.")

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str | None) -> str | None:
        return checked(url) if url else None

    @model_validator(mode="after")
    def _place_is_named(self) -> Self:
        if self.kind == "local" and self.model is None:
            raise ValueError("kind `local` needs `model`, the folder of a cross-encoder")
        if self.kind != "local" and not self.url:
            raise ValueError(f"kind `{self.kind}` needs `url`, as http://host:8000")
        return self


class RetrievalSettings(SectionWithSecrets):
    elasticsearch_url: str | None = Field(
        None, description="http://[user:password@]host:9200; absent: embedded tantivy.", repr=False
    )
    elasticsearch_user: str | None = None
    elasticsearch_password: SecretStr | None = None
    elasticsearch_password_file: Path | None = Field(
        None, description="A file that holds the password, in its place."
    )
    elasticsearch_api_key: SecretStr | None = Field(
        None, description="In the place of user and password; as Elasticsearch encodes it."
    )
    elasticsearch_api_key_file: Path | None = Field(
        None, description="A file that holds the API key, in its place."
    )
    elasticsearch_ca_file: FilePath | None = Field(
        None, description="Certificates (PEM) of the authority that signed the server's."
    )
    elasticsearch_replicas: int | None = Field(
        None,
        ge=0,
        description="Of each index made from now on; absent: 1 where the cluster has two nodes, or "
        "what component template `revelator@custom` says.",
    )
    qdrant_url: str | None = Field(
        None,
        description="http://[:KEY@]host:6333, of version 1.16 or newer; absent: embedded "
        "qdrant-edge.",
        repr=False,
    )
    qdrant_key: SecretStr | None = Field(None, description="Qdrant's API key.")
    qdrant_key_file: Path | None = Field(
        None, description="A file that holds the key, in its place."
    )
    qdrant_ca_file: FilePath | None = Field(
        None,
        description="Certificates (PEM) of the authority that signed the server's, for REST and "
        "gRPC.",
    )
    qdrant_grpc_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="The gRPC port of the same server; absent: the port of `qdrant_url` plus one. "
        "gRPC is used once both ports have proved to be one server, REST until then. 0: REST only.",
    )
    vectors: VectorSettings = VectorSettings()
    embedding_model: str = Field(
        "minilm",
        description="`minilm`, which is shipped (extra `local`); another preset (`e5-base-v2`, "
        "`contriever-msmarco`, `bge-base-en-v1.5`, …); or a model's folder or name.",
    )
    embedding: EmbeddingSettings = EmbeddingSettings()
    fusion: Literal["rrf", "weighted"] = Field(
        "weighted",
        description="How `hybrid` joins its two rankings: reciprocal rank fusion, or the weighted "
        "sum of normalised scores.",
    )
    rrf_k: int = Field(60, ge=1, description="k of reciprocal rank fusion.")
    dense_weight: float = Field(
        0.5, ge=0, le=1, description="`weighted`: the dense side's share; BM25 has the rest."
    )
    normalisation: Literal["min-max", "z"] = Field(
        "z", description="`weighted`: scores to 0 … 1, or to mean 0 and deviation 1."
    )
    timeout_s: float = Field(
        2.0, gt=0, description="Of one search in one backend; a side that takes longer is out."
    )
    write_timeout_s: float = Field(
        30.0, gt=0, description="Of one request to a server that is no search: writes, counts."
    )
    retries: int = Field(
        2,
        ge=0,
        description="More tries of a search that a backend could not take (no connection, 429, "
        "502, 503, 504), within its time.",
    )
    backends: BackendsSettings = BackendsSettings()
    breaker: BreakerSettings = BreakerSettings()
    cache: CacheSettings = CacheSettings()
    reranker: RerankerSettings | None = Field(None, description="Absent: none.")

    @field_validator("elasticsearch_url", "qdrant_url")
    @classmethod
    def _url_is_http(cls, url: str | None) -> str | None:
        return checked(url) if url else None

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.elasticsearch_api_key and self.elasticsearch_user:
            raise ValueError("give elasticsearch_api_key or elasticsearch_user, not both")
        if (self.elasticsearch_user is None) != (self.elasticsearch_password is None):
            raise ValueError("elasticsearch_user and elasticsearch_password go together")
        return self

    def search_timeout_s(self, backend: str) -> float:
        """Of one search in a backend, by its name in the metrics."""
        if own := self.backends.of(backend).timeout_s:
            return own
        loaded_here = backend == "embedding" and self.embedding.url is None
        return max(self.timeout_s, LOAD_S) if loaded_here else self.timeout_s
