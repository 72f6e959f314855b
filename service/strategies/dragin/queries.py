"""The query of a hit (METHODS.md §3.3). QFS, the default, is in `qfs.py`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.core.settings.loops import QueryFormulation
from service.engines.signals import Span
from service.strategies.dragin.rind import Hit
from service.strategies.dragin.words import join
from service.text.tagging.base import Splitter

QUERY_TOKENS: Final = 64  # of the model; a longer query loses its beginning


def plain_query(
    formulation: QueryFormulation, question: str, text: str, hit: Hit, splitter: Splitter
) -> str:
    """Every formulation that needs no attention; `last_n_tokens` is still to be cut."""
    words = [word.word.text for word in hit.words]
    if formulation == "current":
        return join(*words)
    if formulation == "current_wo_wrong":
        kept = (word for word, flag in zip(words, hit.flags, strict=True) if not flag)
        return join(*kept)
    before = join(question, text, hit.previous)
    if formulation == "last_sentence":
        return (splitter.sentences(before) or [""])[-1]
    return before


def last_tokens(text: str, spans: Sequence[Span], most: int) -> str:
    """The end of `text`, whose tokens lie at `spans`, from its last `most` tokens on."""
    return text[spans[-most][0] :].strip() if len(spans) > most else text
