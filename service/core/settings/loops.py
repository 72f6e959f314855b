"""Settings of the routes and loops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic_settings import NoDecode

from service.core.domain import AutoragMode, RouteName
from service.core.settings.base import CommaList, Section


class RoutesSettings(Section):
    allowed: Annotated[list[RouteName], NoDecode, CommaList] = Field(
        ["direct", "single", "compound", "complex"],
        description="Routes that may be used.",
    )


class HanragSettings(Section):
    """HANRAG: the paper's ablations and the limits of its calls (METHODS.md §1.2, §1.6)."""

    relevance: bool = Field(True, description="Judge whether each passage found is relevant.")
    relevance_by: Literal["model", "labeler"] | None = Field(
        None,
        description="Who judges the relevance of passages: the judge's model, as in the paper, "
        "or EfficientRAG's labeler. Default: the labeler for models known to judge poorly (such "
        "as the shipped one), if the labeler can run, else the model.",
    )
    ending: bool = Field(True, description="Ask after each step whether the answer is found.")
    refine: bool = Field(True, description="Let the model write the query of each search.")
    fetch_k: int = Field(
        10, ge=1, le=100, description="Number of passages per search that are judged."
    )
    max_parts: int = Field(
        8, ge=1, le=32, description="Maximum number of parts of a compound question."
    )


AutoragPreset = Literal["nq", "2wiki", "triviaqa", "popqa", "hotpotqa", "webquestions"]


class AutoragLimits(NamedTuple):
    """The paper's limits T, T^PK and m (METHODS.md §2.2)."""

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
        description="`tuned`: for models trained on Auto-RAG's dialogue format, such as its "
        "published checkpoints. `few_shot`: the prompt shows the format by examples. Default: as "
        "the reader's model was trained, if its folder says so (as that of the shipped model "
        "does), else `few_shot`.",
    )
    preset: AutoragPreset | None = Field(
        None, description="Use T, T^PK and m as published for this dataset (Table 10 of the paper)."
    )
    parametric: bool = Field(
        True, description="Allow answers from the model's own knowledge when searches fail."
    )
    max_retrievals: int | None = Field(
        None,
        ge=1,
        le=20,
        description="T, the maximum number of retrievals. Default: as in the preset, else 5.",
    )
    max_parametric: int | None = Field(
        None,
        ge=0,
        le=20,
        description="T^PK, the maximum number of answers from the model's own knowledge, at most "
        "max_steps. Default: as in the preset, else 5.",
    )
    passages: int | None = Field(
        None,
        ge=1,
        le=100,
        description="m, the number of passages per search, if the request has no top_k. Default: "
        "as in the preset, else 2.",
    )
    context_tokens: int = Field(
        8192,
        ge=512,
        description="Maximum tokens of the dialogue. The oldest documents are removed first.",
    )

    @property
    def limits(self) -> AutoragLimits:
        """Return the configured limits, with those of the preset as defaults."""
        preset = AUTORAG_PRESETS[self.preset] if self.preset else AutoragLimits()
        return AutoragLimits(
            preset.max_retrievals if self.max_retrievals is None else self.max_retrievals,
            preset.max_parametric if self.max_parametric is None else self.max_parametric,
            preset.passages if self.passages is None else self.passages,
        )


class EfficientragSettings(Section):
    """EfficientRAG (METHODS.md §4). Settings without a value follow the profile."""

    profile: Literal["official", "service"] = Field(
        "service", description="`official`: as published. `service`: with the service's changes."
    )
    labeler: Path | None = Field(
        None, description="Folder of the labeler's checkpoint. Default: the shipped one."
    )
    filter: Path | None = Field(
        None, description="Folder of the filter's checkpoint. Default: the shipped one."
    )
    labels: Literal[2, 3] | None = Field(
        None,
        description="3: CONTINUE, TERMINATE and FINISH. 2: FINISH counts as CONTINUE, as in the "
        "paper's checkpoints. Default: as in the profile.",
    )
    filter_base: Literal["current", "original"] = Field(
        "current",
        description="What the filter builds the next query from: the query of the current "
        "hop, or the original question.",
    )
    deduplicate: bool | None = Field(
        None, description="Read a passage only once, even if several hops find it."
    )
    reader_passages: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Maximum number of passages that the reader sees. Default: what its model "
        "handles well, or all.",
    )
    threads: int | None = Field(
        None, ge=1, description="Threads per forward pass. Default: half of the machine's cores."
    )


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
    """DRAGIN's retrieval trigger (METHODS.md §3.4 #1 to #3). Settings without a value follow the
    profile."""

    norm: Literal["sentence", "none"] = Field(
        "sentence", description="Scale attention relative to its sentence, or use it unchanged."
    )
    attn_ctx: Literal["draft", "full"] | None = Field(
        None, description="Attention within the draft alone, or within the whole generation."
    )
    exclude_self: bool | None = Field(None, description="Ignore a token's attention to itself.")
    gate_on_filter: bool | None = Field(
        None, description="Words without content cannot trigger a retrieval."
    )
    weigh_last: bool | None = Field(
        None,
        description="Treat the last word of a sentence, to which no later word attends, as "
        "having at least the average attention.",
    )


class QfsSettings(Section):
    ctx: Literal["sentence", "prefix"] = Field(
        "sentence",
        description="The query is formed from the whole sentence of the hit, or from the "
        "text up to the hit.",
    )


class DraginSettings(Section):
    """DRAGIN (METHODS.md §3). Settings without a value follow the profile and the preset."""

    profile: Literal["official", "in_context", "service"] = Field(
        "service",
        description="`official`: as the official code. `in_context`: with attention within the "
        "whole generation. `service`: with the service's further changes (METHODS.md §3.3).",
    )
    preset: PresetName | None = Field(
        None, description="Use θ, n and L as published for this model and dataset."
    )
    preset_source: PresetSource = Field(
        "config",
        description="Origin of the preset's θ: the configuration in the official code, the "
        "paper's table, or the first commit of the code.",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        description="θ, the threshold of the trigger. Default: as in the preset, else 1.0.",
    )
    max_tokens: int | None = Field(
        None, ge=8, le=4096, description="L, the maximum number of tokens of the answer."
    )
    query_words: int | None = Field(
        None, ge=1, le=512, description="n, the maximum number of words in a query."
    )
    max_retrievals: int | None = Field(
        None, ge=0, le=64, description="Maximum number of retrievals."
    )
    weight: Weight = Field(
        "entropy",
        description="Weight of a token in the trigger: its entropy, or its negative "
        "log-probability (`attn_prob`).",
    )
    query_formulation: QueryFormulation = Field(
        "real_words", description="How the query is formed (METHODS.md §3.4)."
    )
    truncate: Literal["sentence", "token"] = Field(
        "sentence", description="Cut the draft before the sentence or the token of the hit."
    )
    docs_persist: bool = Field(
        False, description="Keep passages in the prompt until other passages replace them."
    )
    cut_drafts: bool | None = Field(None, description="End each draft at its first line break.")
    rind: RindSettings = RindSettings()
    qfs: QfsSettings = QfsSettings()
    tagger: Literal["stopwords", "hanta", "spacy"] = Field(
        "stopwords",
        description="How content words are identified: by a list of stop words, by HanTa's "
        "part-of-speech tags, or by those of spaCy's model en_core_web_sm, as in the official "
        'code. With `spacy` and `sentences = "model"`, the profile `official` reproduced the '
        "official code's trajectories exactly.",
    )
    sentences: Literal["own", "sentencizer", "model"] = Field(
        "own",
        description="How text is split into sentences: by the service's own rules, by "
        "spaCy's rules (`sentencizer`), or by spaCy's model.",
    )

    @model_validator(mode="after")
    def _preset_has_the_threshold(self) -> DraginSettings:
        first_known = self.preset is None or self.preset.startswith("llama-2-13b-chat/")
        if self.preset_source == "first" and not first_known:
            raise ValueError(
                "the first commit has thresholds only for llama-2-13b-chat; choose such a "
                "preset, or another preset_source"
            )
        return self
