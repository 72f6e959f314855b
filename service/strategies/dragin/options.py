"""What a DRAGIN loop does in this deployment: a profile, and the flags that differ from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from service.core.settings.loops import DraginSettings, QueryFormulation, Weight
from service.strategies.dragin.presets import PRESETS
from service.strategies.dragin.rind import Rule
from service.text.tagging.factory import SplitterName, TaggerName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """The resolved set (METHODS.md §3.4, §6 #1).

    `limit` is L: the tokens of a draft, and of the whole text. `full_context`: attention is that
    of the generation, prompt and all, instead of the draft read on its own. `exclude_self`: a
    token's attention to itself does not count. `cut_drafts`: a draft ends at its first line break.
    `may_decline`: a demonstration shows how to say that no answer was found.
    """

    rule: Rule = field(default_factory=Rule)
    limit: int = 128
    query_words: int = 25
    max_retrievals: int | None = None
    weight: Weight = "entropy"
    formulation: QueryFormulation = "real_words"
    full_context: bool = False
    exclude_self: bool = False
    cut_drafts: bool = False
    may_decline: bool = False
    truncate_at_token: bool = False
    docs_persist: bool = False
    query_prefix_only: bool = False
    tagger: TaggerName = "stopwords"
    splitter: SplitterName = "own"


OFFICIAL: Final = Options()
IN_CONTEXT: Final = replace(OFFICIAL, full_context=True, exclude_self=True)
SERVICE: Final = replace(
    IN_CONTEXT,
    rule=Rule(gate_on_filter=True, weigh_last=True),
    cut_drafts=True,
    may_decline=True,
    max_retrievals=8,
)
PROFILES: Final = {"official": OFFICIAL, "in_context": IN_CONTEXT, "service": SERVICE}


def resolve(settings: DraginSettings) -> Options:
    """The profile, then the preset's L, n and θ, then each flag that is given."""
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
