"""Routes and loops."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import NoDecode

from service.domain import RouteName
from service.settings.base import CommaList, Section


class RoutesSettings(Section):
    allowed: Annotated[list[RouteName], NoDecode, CommaList] = [
        "direct",
        "single",
        "compound",
        "complex",
    ]


class HanragSettings(Section):
    """The paper's ablations (methods §1.6) and failure policy (§1.2)."""

    relevance: bool = True
    ending: bool = True
    refine: bool = True
    on_no_evidence: Literal["abstain", "closed_book", "top3_unfiltered"] = "abstain"
    fetch_k: int = Field(10, ge=1, le=100)
    max_parts: int = Field(8, ge=1, le=32)


class AutoragSettings(Section):
    """Auto-RAG (methods §2)."""

    mode: Literal["tuned", "few_shot"] = "tuned"
    parametric: bool = True
    max_retrievals: int = Field(5, ge=1, le=20, description="T")
    max_parametric: int = Field(5, ge=0, le=20, description="T^PK, at most max_steps")
    context_tokens: int = Field(8192, ge=512, description="Oldest documents go when it is full.")
