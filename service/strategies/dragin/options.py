"""The options of DRAGIN: a profile, a preset of the paper, and the settings that override them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from service.core.settings.loops import (
    DraginSettings,
    PresetName,
    PresetSource,
    QueryFormulation,
    Weight,
)
from service.strategies.drafting.run import DraftOptions
from service.strategies.dragin.rind import Rule
from service.text.tagging.factory import TaggerName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options(DraftOptions):
    """The resolved options (METHODS.md §3.4, §6 #1).

    `full_context`: attention is that of the generation, prompt and all, instead of the draft read
    on its own. `exclude_self`: a token's attention to itself does not count.
    """

    rule: Rule = field(default_factory=Rule)
    query_words: int = 25
    weight: Weight = "entropy"
    formulation: QueryFormulation = "real_words"
    full_context: bool = False
    exclude_self: bool = False
    truncate_at_token: bool = False
    query_prefix_only: bool = False
    tagger: TaggerName = "stopwords"


OFFICIAL: Final = Options()
IN_CONTEXT: Final = replace(OFFICIAL, full_context=True, exclude_self=True)
SERVICE: Final = replace(
    IN_CONTEXT,
    rule=Rule(gate_on_filter=True, weigh_last=True),
    cut_drafts=True,
    may_decline=True,
    keep_examples=False,
    max_retrievals=8,
)
PROFILES: Final = {"official": OFFICIAL, "in_context": IN_CONTEXT, "service": SERVICE}


@dataclass(frozen=True, slots=True)
class Preset:
    """L, n and θ of one of the paper's models and datasets (METHODS.md §3.2, §3.4 #10): θ of
    Table 9, of today's configuration files, and of the first commit if it is known."""

    limit: int
    query_words: int
    paper: float
    config: float
    first: float | None = None

    def threshold(self, source: PresetSource) -> float:
        if source == "first" and self.first is not None:
            return self.first
        return self.paper if source == "paper" else self.config


PRESETS: Final[dict[PresetName, Preset]] = {
    "llama-2-13b-chat/2wiki": Preset(64, 25, 0.6, 0.8, 0.9),
    "llama-2-13b-chat/hotpotqa": Preset(100, 35, 1.2, 1.2, 1.4),
    "llama-2-13b-chat/iirc": Preset(128, 25, 1.25, 1.0, 1.25),
    "llama-2-13b-chat/strategyqa": Preset(100, 25, 1.0, 1.3, 1.0),
    "llama-2-7b-chat/2wiki": Preset(64, 25, 1.0, 1.0),
    "llama-2-7b-chat/hotpotqa": Preset(100, 35, 1.3, 0.8),
    "llama-2-7b-chat/iirc": Preset(128, 35, 1.3, 0.6),
    "llama-2-7b-chat/strategyqa": Preset(100, 35, 0.75, 0.75),
    "vicuna-13b-v1.5/2wiki": Preset(64, 25, 1.2, 1.2),
    "vicuna-13b-v1.5/hotpotqa": Preset(100, 35, 1.2, 1.2),
    "vicuna-13b-v1.5/iirc": Preset(128, 35, 1.3, 1.3),
    "vicuna-13b-v1.5/strategyqa": Preset(100, 25, 1.5, 1.5),
}


def resolve(settings: DraginSettings) -> Options:
    """Resolve the profile, then the preset's L, n and θ, then each setting that is given."""
    base = PROFILES[settings.profile]
    if settings.preset is not None:
        preset = PRESETS[settings.preset]
        base = replace(
            base,
            rule=replace(base.rule, threshold=preset.threshold(settings.preset_source)),
            limit=preset.limit,
            query_words=preset.query_words,
        )
    rind, full = settings.rind, {None: base.full_context, "full": True, "draft": False}
    return replace(
        base,
        rule=Rule(
            _or(settings.threshold, base.rule.threshold),
            rind.norm,
            _or(rind.gate_on_filter, base.rule.gate_on_filter),
            _or(rind.weigh_last, base.rule.weigh_last),
        ),
        limit=_or(settings.max_tokens, base.limit),
        query_words=_or(settings.query_words, base.query_words),
        max_retrievals=_or(settings.max_retrievals, base.max_retrievals),
        weight=settings.weight,
        formulation=settings.query_formulation,
        full_context=full[rind.attn_ctx],
        exclude_self=_or(rind.exclude_self, base.exclude_self),
        cut_drafts=_or(settings.cut_drafts, base.cut_drafts),
        truncate_at_token=settings.truncate == "token",
        docs_persist=settings.docs_persist,
        query_prefix_only=settings.qfs.ctx == "prefix",
        tagger=settings.tagger,
        splitter=settings.sentences,
    )


def _or(given: T | None, default: T) -> T:
    return default if given is None else given
