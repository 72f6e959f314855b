"""What a collection's vectors and a query's must share to be comparable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from service.settings.retrieval import Distance, Pooling


class EmbeddingContract(BaseModel):
    """How text becomes a vector. A collection keeps it in its manifest; queries must follow it.

    `max_length` counts tokens, with the prefix and the model's own marks; what is longer is cut at
    its end; None: all of a text is read. Where a server embeds, pooling is the server's work.
    `revision` counts how often the vectors that Revelator had under these names became other ones.
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
    """The fields that differ and both values, for an error message; empty when they agree."""
    return "; ".join(
        f"{field} is {mine!r}, but the settings say {theirs!r}"
        for field in EmbeddingContract.model_fields
        if (mine := getattr(built, field)) != (theirs := getattr(settings, field))
    )
