"""Settings of the stores and of searching."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from service.core.settings.base import Section, SectionWithSecrets
from service.core.settings.urls import checked
from service.core.settings.vectors import VectorSettings

Pooling = Literal["mean", "cls"]
Distance = Literal["cosine", "dot"]
LOAD_S = 10.0  # that an embedding model in this process may take, loading included


class EmbeddingSettings(SectionWithSecrets):
    """Where the embedding model runs, and how it differs from its preset.

    A model without a preset uses no prefixes, mean pooling, normalised vectors, cosine distance and
    512 tokens.
    """

    url: str | None = Field(
        None,
        description="Base URL, including /v1, of a server that provides `/embeddings`. Default: "
        "embed in this process.",
        repr=False,
    )
    key: SecretStr | None = Field(
        None, description="API key of the server, sent as a bearer token."
    )
    ca_file: FilePath | None = Field(
        None,
        description="PEM file with the certificate authority (CA) that signed the server's "
        "certificate.",
    )
    location: str | None = Field(
        None,
        description="Folder of the model, or its name at the server, if it differs from "
        "`embedding_model`.",
    )
    timeout_s: float = Field(
        30.0, gt=0, description="Time limit of one request to the server, in seconds."
    )
    batch: int = Field(32, ge=1, le=2048, description="Number of texts per request to the server.")
    window_s: float = Field(
        0.002,
        ge=0,
        le=0.1,
        description="Seconds that a query waits for others, to be embedded as one batch, while "
        "the model is busy.",
    )
    encoding: Literal["float", "base64"] = Field(
        "float", description="Encoding of vectors in the server's responses. base64 is shorter."
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="Threads of a model in this process. Default: half of the cores, at most 4.",
    )
    query_prefix: str | None = Field(None, description="Text put before every query.")
    passage_prefix: str | None = Field(None, description="Text put before every passage.")
    pooling: Pooling | None = Field(
        None, description="`mean`: average over the tokens. `cls`: the first token."
    )
    normalise: bool | None = Field(None, description="Scale vectors to length 1.")
    distance: Distance | None = Field(
        None, description="Distance that the store uses to compare vectors."
    )
    max_length: int | None = Field(
        None, ge=8, description="Maximum tokens of a text, including its prefix."
    )
    dimension: int | None = Field(
        None, ge=1, description="Vector size. Required if a server's model has no preset."
    )

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str | None) -> str | None:
        return checked(url) if url else None


class BackendSettings(Section):
    timeout_s: float | None = Field(
        None,
        gt=0,
        description="Time limit of one search including retries, in seconds. Default: "
        "retrieval.timeout_s, or at least 10 s for an embedding model in this process, which may "
        "have to be loaded first.",
    )
    concurrency: int = Field(
        64,
        ge=1,
        description="Maximum concurrent searches. Further searches wait within their time limit.",
    )


class BackendsSettings(Section):
    """Limits per backend. Those of backends not in use have no effect."""

    tantivy: BackendSettings = BackendSettings()
    elasticsearch: BackendSettings = BackendSettings()
    qdrant_edge: BackendSettings = BackendSettings()
    qdrant: BackendSettings = BackendSettings()
    embedding: BackendSettings = BackendSettings()

    def of(self, backend: str) -> BackendSettings:
        """Return the limits of a backend by its name in the metrics, or the defaults."""
        own: BackendSettings = getattr(self, backend, None) or BackendSettings()
        return own


class BreakerSettings(Section):
    failures: int = Field(
        5,
        ge=1,
        description="Number of consecutive failed searches (no connection, timeout, 429, 502, "
        "503, 504) after which the backend's circuit breaker opens. While it is open, the "
        "backend is not searched.",
    )
    lost_s: float = Field(
        3.0,
        gt=0,
        description="Seconds without any response, while searches wait for the backend, after "
        "which the circuit breaker opens too.",
    )
    open_s: float = Field(
        1.0,
        gt=0,
        description="Seconds after which one search probes the backend. Its question does not "
        "wait for the result.",
    )


class CacheSettings(Section):
    query_embeddings: int = Field(
        1000, ge=0, description="Number of cached query embeddings. 0 disables the cache."
    )
    search_results: int = Field(
        0,
        ge=0,
        description="Number of cached search results. An entry is valid until its collection "
        "changes. 0 disables the cache. Only for collections in tantivy and qdrant-edge, because "
        "another gateway may change those on servers.",
    )


class RerankerSettings(SectionWithSecrets):
    """A cross-encoder that reorders the fused passages of `hybrid`.

    If it fails, answers keep the fused order, and
    `revelator_retrieval_failures_total{backend="reranker"}` counts the failure.
    """

    kind: Literal["vllm", "vllm-score", "tei", "local"] = Field(
        description="`vllm` (/v1/rerank) or `vllm-score` (/score): a vLLM server. `tei` "
        "(/rerank): a text-embeddings-inference server. `local`: a model in this process (extra "
        "`transformers`)."
    )
    url: str | None = Field(
        None, description="URL of the server, without a path: http://host:8000.", repr=False
    )
    key: SecretStr | None = Field(
        None, description="API key of the server, sent as a bearer token."
    )
    ca_file: FilePath | None = Field(
        None,
        description="PEM file with the certificate authority (CA) that signed the server's "
        "certificate.",
    )
    model: str | None = Field(
        None, description="Name of the model at the vLLM server, or the model's folder for `local`."
    )
    top_n: int = Field(
        30,
        ge=1,
        description="Number of fused passages that are scored. At least top_k are always scored.",
    )
    timeout_s: float = Field(
        2.0,
        gt=0,
        description="Time limit for the scores of one search, including retries, in seconds.",
    )

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, url: str | None) -> str | None:
        return checked(url) if url else None

    @model_validator(mode="after")
    def _place_is_named(self) -> Self:
        if self.kind == "local" and self.model is None:
            raise ValueError("kind `local` needs `model`, the folder of a cross-encoder")
        if self.kind != "local" and not self.url:
            raise ValueError(f"kind `{self.kind}` needs `url`, such as http://host:8000")
        return self


class RetrievalSettings(SectionWithSecrets):
    elasticsearch_url: str | None = Field(
        None,
        description="URL of Elasticsearch, http://[user:password@]host:9200. Default: "
        "embedded tantivy.",
        repr=False,
    )
    elasticsearch_user: str | None = Field(None, description="User name at Elasticsearch.")
    elasticsearch_password: SecretStr | None = Field(
        None, description="Password of `elasticsearch_user`."
    )
    elasticsearch_api_key: SecretStr | None = Field(
        None,
        description="Encoded API key, as Elasticsearch returns it. Replaces user and password.",
    )
    elasticsearch_ca_file: FilePath | None = Field(
        None,
        description="PEM file with the certificate authority (CA) that signed the server's "
        "certificate.",
    )
    elasticsearch_replicas: int | None = Field(
        None,
        ge=0,
        description="Replicas of each newly created index. Default: 1 if the cluster has at "
        "least two nodes, or as in the component template `revelator@custom`.",
    )
    qdrant_url: str | None = Field(
        None,
        description="URL of Qdrant 1.16 or newer, http://[:KEY@]host:6333. Default: embedded "
        "qdrant-edge.",
        repr=False,
    )
    qdrant_key: SecretStr | None = Field(None, description="API key of Qdrant.")
    qdrant_ca_file: FilePath | None = Field(
        None,
        description="PEM file with the certificate authority (CA) that signed the server's "
        "certificate, for REST and gRPC.",
    )
    qdrant_grpc_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="gRPC port of the same server. Default: the port of `qdrant_url` plus one. "
        "gRPC is used after both ports have been verified to belong to one server, REST before. "
        "0 disables gRPC.",
    )
    vectors: VectorSettings = VectorSettings()
    embedding_model: str = Field(
        "minilm",
        description="The shipped model `minilm` (extra `local`), another preset (`e5-base-v2`, "
        "`contriever-msmarco`, `bge-base-en-v1.5`, …), or the folder or name of a model.",
    )
    embedding: EmbeddingSettings = EmbeddingSettings()
    fusion: Literal["rrf", "weighted"] = Field(
        "weighted",
        description="How `hybrid` combines its two rankings: by reciprocal rank fusion, or by "
        "the weighted sum of normalised scores.",
    )
    rrf_k: int = Field(60, ge=1, description="The constant k of reciprocal rank fusion.")
    dense_weight: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Weight of the dense side for `weighted`. BM25 has the remainder.",
    )
    normalisation: Literal["min-max", "z"] = Field(
        "z",
        description="Score normalisation for `weighted`: `min-max` scales to 0 … 1; `z` "
        "scales to mean 0 and standard deviation 1.",
    )
    timeout_s: float = Field(
        2.0,
        gt=0,
        description="Time limit of one search in one backend, in seconds. A side that "
        "exceeds it is left out of the answer.",
    )
    write_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Time limit of other requests to a server (writes, counts), in seconds.",
    )
    retries: int = Field(
        2,
        ge=0,
        description="Maximum retries of a search that a backend did not accept (no connection, "
        "429, 502, 503, 504), within its time limit.",
    )
    backends: BackendsSettings = BackendsSettings()
    breaker: BreakerSettings = BreakerSettings()
    cache: CacheSettings = CacheSettings()
    reranker: RerankerSettings | None = Field(
        None, description="Reranker of `hybrid`. Default: none."
    )

    @field_validator("elasticsearch_url", "qdrant_url")
    @classmethod
    def _url_is_http(cls, url: str | None) -> str | None:
        return checked(url) if url else None

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.elasticsearch_api_key and self.elasticsearch_user:
            raise ValueError("set either elasticsearch_api_key or elasticsearch_user, not both")
        if (self.elasticsearch_user is None) != (self.elasticsearch_password is None):
            raise ValueError("elasticsearch_user and elasticsearch_password must be set together")
        return self

    def search_timeout_s(self, backend: str) -> float:
        """Return the time limit of one search in a backend, named as in the metrics."""
        if own := self.backends.of(backend).timeout_s:
            return own
        loaded_here = backend == "embedding" and self.embedding.url is None
        return max(self.timeout_s, LOAD_S) if loaded_here else self.timeout_s
