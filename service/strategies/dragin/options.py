"""The options of DRAGIN: a profile, and the settings' θ, L, n and tagger."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from service.core.settings import DraginSettings
from service.strategies.drafting.run import MAX_RETRIEVALS, DraftOptions
from service.strategies.dragin.rind import Rule
from service.text.tagging import TaggerName


@dataclass(frozen=True, slots=True)
class DraginOptions(DraftOptions):
    """The resolved options (METHODS.md §3.4, §6 #1).

    `full_context`: attention is that of the generation, prompt and all, instead of the draft read
    on its own. `exclude_self`: a token's attention to itself does not count.
    """

    rule: Rule = field(default_factory=Rule)
    query_words: int = 25
    full_context: bool = False
    exclude_self: bool = False
    tagger: TaggerName = "stopwords"


OFFICIAL: Final = DraginOptions()
IN_CONTEXT: Final = replace(OFFICIAL, full_context=True, exclude_self=True)
SERVICE: Final = replace(
    IN_CONTEXT,
    rule=Rule(gate_on_filter=True, weigh_last=True),
    cut_drafts=True,
    may_decline=True,
    keep_examples=False,
    max_retrievals=MAX_RETRIEVALS,
)
PROFILES: Final = {"official": OFFICIAL, "in_context": IN_CONTEXT, "service": SERVICE}


def resolve(settings: DraginSettings) -> DraginOptions:
    """Resolve the profile, with the settings' θ, L, n and tagger."""
    base = PROFILES[settings.profile]
    return replace(
        base,
        rule=replace(base.rule, threshold=settings.threshold),
        limit=settings.max_tokens,
        query_words=settings.query_words,
        tagger=settings.tagger,
        splitter="model" if settings.tagger == "spacy" else "own",
    )
