"""Drafts by hand: words with an attention and an entropy each, a token or several a word."""

from __future__ import annotations

from collections.abc import Sequence

from service.engines.signals import DraftToken, Maximum, Span
from service.strategies.rind import Word, group_words
from service.text.tagging import open_splitter, open_tagger

TAGGER, SPLITTER = open_tagger("stopwords"), open_splitter("own")

# METHODS.md §3.7: θ = 1.0; entropies the text does not give are chosen so that no other word hits.
WORKED = "Norma was composed by Vincenzo Bellini. He was born in Palermo. So the answer is Palermo."
WORKED_ATTENTION = (
    1.00, 0.20, 0.35, 0.15, 0.30, 0.25,
    0.22, 0.18, 0.30, 0.15, 0.35,
    0.20, 0.20, 0.20, 0.20, 0.20,
)  # fmt: skip
WORKED_ENTROPY = (
    0.30, 0.10, 0.50, 0.10, 0.60, 0.70,
    0.40, 0.10, 0.30, 0.10, 1.10,
    0.10, 0.10, 0.10, 0.10, 0.10,
)  # fmt: skip


def pieces_of(text: str) -> list[str]:
    """A token a word, the space before it inside."""
    words = text.split(" ")
    return [f" {word}" if number else word for number, word in enumerate(words)]


def spans_of(pieces: Sequence[str]) -> list[Span]:
    spans, place = [], 0
    for piece in pieces:
        spans.append((place, place + len(piece)))
        place += len(piece)
    return spans


def words_of(text: str) -> list[Word]:
    return group_words(text, spans_of(pieces_of(text)))


def tokens_of(
    pieces: Sequence[str], entropy: Sequence[float], updates: Sequence[Sequence[Maximum]]
) -> list[DraftToken]:
    return [
        DraftToken(10 + n, piece, span, entropy[n], -entropy[n], tuple(updates[n]))
        for n, (piece, span) in enumerate(zip(pieces, spans_of(pieces), strict=True))
    ]
