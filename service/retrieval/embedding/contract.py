"""What a collection's vectors and a query's vector must share to be comparable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from service.core.settings.retrieval import Distance, Pooling


class EmbeddingContract(BaseModel):
    """How text becomes a vector. A collection keeps it in its manifest, and queries must follow it.

    `max_length` counts tokens, including the prefix and special tokens; longer texts are truncated
    at the end; None means no limit. If a server embeds, it also does the pooling. `revision`
    increases when the vectors that Revelator produces under these names change.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    dimension: int = Field(ge=1)
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    normalise: bool = True
    distance: Distance = "cosine"
    max_length: int | None = Field(512, ge=8)
    revision: int = Field(1, ge=1)


def differences(built: EmbeddingContract, settings: EmbeddingContract) -> str:
    """Return the differing fields with both values, for an error message. Empty if there are
    none."""
    return "; ".join(
        f"{field} is {mine!r}, but the settings say {theirs!r}"
        for field in EmbeddingContract.model_fields
        if (mine := getattr(built, field)) != (theirs := getattr(settings, field))
    )
