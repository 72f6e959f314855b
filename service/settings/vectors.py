"""How the dense store keeps vectors and searches them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.settings.base import Section


class VectorSettings(Section):
    """Of Qdrant and of the embedded engine alike. `hnsw_*` and `quantization` hold for what is
    built from now on (Qdrant: collections; embedded: graphs), `search_*` for every search."""

    hnsw_m: int = Field(16, ge=2, le=512, description="Edges of a vector in the graph (HNSW).")
    hnsw_ef_construct: int = Field(
        100, ge=4, description="Candidates that are looked at when a vector enters the graph."
    )
    quantization: Literal["none", "scalar", "binary"] = Field(
        "none",
        description="Keep small copies of the vectors in memory, to be searched first: `scalar` "
        "(a quarter of the size) or `binary` (a 32nd; for 1,000 dimensions and more).",
    )
    search_ef: int | None = Field(
        None, ge=1, description="Candidates of a search in the graph; absent: hnsw_ef_construct."
    )
    search_exact: bool = Field(False, description="Compare with every vector, without the graph.")
    search_oversampling: float = Field(
        2.0,
        ge=1,
        description="With quantization: so many times top_k come from the small copies and are "
        "scored again by the whole vectors.",
    )
