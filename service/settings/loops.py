"""Routes and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
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
    relevance_by: Literal["model", "labeler"] | None = Field(
        None,
        description="Who judges it: the judge's model, as in the paper, or EfficientRAG's labeler. "
        "Absent: the labeler for models that are known to read little (the shipped one), if it can "
        "run, else the model.",
    )
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


class EfficientragSettings(Section):
    """EfficientRAG (methods §4). What is absent follows the profile."""

    profile: Literal["official", "service"] = "service"
    labeler: Path | None = Field(None, description="A checkpoint's folder; absent: the shipped one")
    filter: Path | None = Field(None, description="A checkpoint's folder; absent: the shipped one")
    labels: Literal[2, 3] | None = Field(
        None, description="2: a passage that ends the search has it continue, as the paper's do."
    )
    filter_base: Literal["current", "original"] = Field(
        "current", description="The next query is made of this hop's query, or of the question."
    )
    deduplicate: bool | None = Field(None, description="A passage found twice is read once.")
    reader_passages: int | None = Field(
        None,
        ge=1,
        le=100,
        description="The reader sees so many; absent: what its model reads well, or all.",
    )
    threads: int | None = Field(None, ge=1, description="Of a forward pass; half of the machine's.")


Weight = Literal["entropy", "attn_prob"]
QueryFormulation = Literal[
    "real_words", "current", "current_wo_wrong", "forward_all", "last_sentence", "last_n_tokens"
]
PresetSource = Literal["config", "paper", "first"]
PresetName = Literal[
    "llama-2-13b-chat/2wiki", "llama-2-13b-chat/hotpotqa",
    "llama-2-13b-chat/iirc", "llama-2-13b-chat/strategyqa",
    "llama-2-7b-chat/2wiki", "llama-2-7b-chat/hotpotqa",
    "llama-2-7b-chat/iirc", "llama-2-7b-chat/strategyqa",
    "vicuna-13b-v1.5/2wiki", "vicuna-13b-v1.5/hotpotqa",
    "vicuna-13b-v1.5/iirc", "vicuna-13b-v1.5/strategyqa",
]  # fmt: skip


class RindSettings(Section):
    """Which word asks for retrieval (methods §3.4 #1 to #3); absent: as the profile says."""

    norm: Literal["sentence", "none"] = Field(
        "sentence", description="Attention relative to its sentence, or as it is."
    )
    attn_ctx: Literal["draft", "full"] | None = Field(
        None, description="Attention of the draft read on its own, or of the generation itself."
    )
    exclude_self: bool | None = Field(
        None, description="A token's attention to itself does not count."
    )
    gate_on_filter: bool | None = Field(
        None, description="Words without content cannot ask for retrieval."
    )


class QfsSettings(Section):
    ctx: Literal["sentence", "prefix"] = Field(
        "sentence", description="The query sees the whole sentence of the hit, or up to the hit."
    )


class DraginSettings(Section):
    """DRAGIN (methods §3). What is absent follows the profile and the preset."""

    profile: Literal["official", "in_context", "service"] = "service"
    preset: PresetName | None = Field(None, description="θ, n and L of a published model and set.")
    preset_source: PresetSource = Field(
        "config", description="θ of today's code, of the paper's table, or of the first commit."
    )
    threshold: float | None = Field(None, gt=0, description="θ; 1.0 unless a preset says otherwise")
    max_tokens: int | None = Field(None, ge=8, le=4096, description="L")
    query_words: int | None = Field(None, ge=1, le=512, description="n")
    max_retrievals: int | None = Field(None, ge=0, le=64)
    weight: Weight = Field("entropy", description="`attn_prob`: −log p in the place of entropy.")
    query_formulation: QueryFormulation = "real_words"
    truncate: Literal["sentence", "token"] = "sentence"
    docs_persist: bool = Field(
        False, description="Passages stay in the prompts until others replace them."
    )
    cut_drafts: bool | None = Field(None, description="A draft ends at its first line break.")
    rind: RindSettings = RindSettings()
    qfs: QfsSettings = QfsSettings()
    tagger: Literal["stopwords", "hanta", "spacy"] = "stopwords"
    sentences: Literal["own", "sentencizer", "model"] = Field(
        "own", description="The service's rules, spaCy's rules, or spaCy's model."
    )

    @model_validator(mode="after")
    def _preset_has_the_threshold(self) -> DraginSettings:
        first_known = self.preset is None or self.preset.startswith("llama-2-13b-chat/")
        if self.preset_source == "first" and not first_known:
            raise ValueError("the first commit's thresholds are known for llama-2-13b-chat only")
        return self
