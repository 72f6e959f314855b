"""Routes and loops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic_settings import NoDecode

from service.domain import AutoragMode, RouteName
from service.settings.base import CommaList, Section


class RoutesSettings(Section):
    allowed: Annotated[list[RouteName], NoDecode, CommaList] = [
        "direct",
        "single",
        "compound",
        "complex",
    ]


class HanragSettings(Section):
    """The paper's ablations, and what bounds its calls (METHODS.md §1.2, §1.6)."""

    relevance: bool = True
    relevance_by: Literal["model", "labeler"] | None = Field(
        None,
        description="Who judges it: the judge's model, as in the paper, or EfficientRAG's labeler. "
        "Absent: the labeler for models that are known to read little (the shipped one), if it can "
        "run, else the model.",
    )
    ending: bool = True
    refine: bool = True
    fetch_k: int = Field(10, ge=1, le=100)
    max_parts: int = Field(8, ge=1, le=32)


AutoragPreset = Literal["nq", "2wiki", "triviaqa", "popqa", "hotpotqa", "webquestions"]


class AutoragLimits(NamedTuple):
    """T, T^PK and m (METHODS.md §2.2)."""

    max_retrievals: int = 5
    max_parametric: int = 5
    passages: int = 2


AUTORAG_PRESETS: Final[Mapping[AutoragPreset, AutoragLimits]] = {
    "nq": AutoragLimits(5, 5, 3),
    "2wiki": AutoragLimits(10, 5, 2),
    "triviaqa": AutoragLimits(5, 5, 3),
    "popqa": AutoragLimits(5, 5, 2),
    "hotpotqa": AutoragLimits(5, 5, 3),
    "webquestions": AutoragLimits(5, 5, 1),
}


class AutoragSettings(Section):
    """Auto-RAG (METHODS.md §2)."""

    mode: AutoragMode | None = Field(
        None,
        description="`tuned`: for models trained on Auto-RAG's form, its published checkpoints "
        "among them; `few_shot`: the form is shown by examples. Absent: as the reader's model was "
        "trained where its folder says so (the shipped model's does), else `few_shot`.",
    )
    preset: AutoragPreset | None = Field(
        None, description="T, T^PK and m of a dataset as published (Table 10 of the paper)."
    )
    parametric: bool = True
    max_retrievals: int | None = Field(
        None, ge=1, le=20, description="T; absent: as the preset says, else 5."
    )
    max_parametric: int | None = Field(
        None,
        ge=0,
        le=20,
        description="T^PK, at most max_steps; absent: as the preset says, else 5.",
    )
    passages: int | None = Field(
        None,
        ge=1,
        le=100,
        description="m, of one search, where the request has no top_k; absent: as the preset says, "
        "else 2.",
    )
    context_tokens: int = Field(8192, ge=512, description="Oldest documents go when it is full.")

    @property
    def limits(self) -> AutoragLimits:
        """Each as set, else as the preset has it."""
        preset = AUTORAG_PRESETS[self.preset] if self.preset else AutoragLimits()
        return AutoragLimits(
            preset.max_retrievals if self.max_retrievals is None else self.max_retrievals,
            preset.max_parametric if self.max_parametric is None else self.max_parametric,
            preset.passages if self.passages is None else self.passages,
        )


class EfficientragSettings(Section):
    """EfficientRAG (METHODS.md §4). What is absent follows the profile."""

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
    """Which word asks for retrieval (METHODS.md §3.4 #1 to #3); absent: as the profile says."""

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
    weigh_last: bool | None = Field(
        None,
        description="The last word of a sentence, which no later word attends to, counts as "
        "attended to as much as the average word at least.",
    )


class QfsSettings(Section):
    ctx: Literal["sentence", "prefix"] = Field(
        "sentence", description="The query sees the whole sentence of the hit, or up to the hit."
    )


class DraginSettings(Section):
    """DRAGIN (METHODS.md §3). What is absent follows the profile and the preset."""

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
    tagger: Literal["stopwords", "hanta", "spacy"] = Field(
        "stopwords",
        description="Tells words with content from others: a list of stop words, HanTa's parts of "
        "speech, or those of spaCy's model en_core_web_sm, as in the official code. Compared with "
        "that code on spaCy's model (`spacy`, with sentences by `model`), trajectories of the "
        "profile `official` were identical.",
    )
    sentences: Literal["own", "sentencizer", "model"] = Field(
        "own", description="The service's rules, spaCy's rules, or spaCy's model."
    )

    @model_validator(mode="after")
    def _preset_has_the_threshold(self) -> DraginSettings:
        first_known = self.preset is None or self.preset.startswith("llama-2-13b-chat/")
        if self.preset_source == "first" and not first_known:
            raise ValueError("the first commit's thresholds are known for llama-2-13b-chat only")
        return self
