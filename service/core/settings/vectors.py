"""Settings of vector storage and search."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.core.settings.base import Section


class VectorSettings(Section):
    """Settings for Qdrant and the embedded engine.

    `hnsw_*` and `quantization` apply to collections (Qdrant) or graphs (embedded) built from now
    on, `search_*` to every search.
    """

    hnsw_m: int = Field(16, ge=2, le=512, description="Edges per vector in the HNSW graph.")
    hnsw_ef_construct: int = Field(
        100, ge=4, description="Candidates examined when a vector is added to the graph."
    )
    quantization: Literal["none", "scalar", "binary"] = Field(
        "none",
        description="Keep compressed copies of the vectors in memory and search them first: "
        "`scalar` (a quarter of the size) or `binary` (a 32nd; for 1,000 dimensions and more).",
    )
    search_ef: int | None = Field(
        None,
        ge=1,
        description="Candidates examined by a search in the graph. Default: hnsw_ef_construct.",
    )
    search_exact: bool = Field(False, description="Compare with every vector, without the graph.")
    search_oversampling: float = Field(
        2.0,
        ge=1,
        description="With quantization: top_k is multiplied by this factor, and the candidates "
        "found in the compressed copies are rescored with the full vectors.",
    )
