"""A question as words, each with the hop that takes it out of the query (METHODS.md §4.5, step 4).

A query shrinks by deleting words and grows by the words of an answer, nothing else. In ``When was
the father of the director of Heat born?`` the hop 1 takes out ``the director of Heat``, hop 2 what
is left of ``the father of``; the words of hop 1's answer go with hop 2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from service.encoders.words import Word, words
from service.text import STOP_WORDS
from service.workshop.encoders.alignment import Mark
from service.workshop.facts.labels import sentence_words

STAYS = 99  # of a word that no hop takes out


class Token(NamedTuple):
    text: str
    hop: int = STAYS


class Wording(NamedTuple):
    """A query: its text, and its words as FILTER reads them."""

    text: str
    tokens: tuple[Token, ...]


class Told(NamedTuple):
    """A word of an info, and whether it belongs to the answer."""

    text: str
    answer: bool


def worded(text: str, phrases: Sequence[str]) -> Wording | None:
    """`phrases[k]` is the stretch that hop k + 1 answers; each may contain the one before.

    None where the words are cut otherwise than FILTER reads them.
    """
    spans = [(start := text.find(phrase), start + len(phrase)) for phrase in phrases]

    def hop(word: Word) -> int:
        around = (k for k, (a, b) in enumerate(spans, 1) if a <= word.start and word.end <= b)
        return next(around, STAYS)

    tokens = tuple(Token(word.text, hop(word)) for word in words(text))
    agree = [token.text for token in tokens] == sentence_words(text, ())
    return Wording(text, tokens) if agree and all(a >= 0 for a, _ in spans) else None


def retyped(wording: Wording, rng: random.Random) -> Wording:
    """As another person types it: case, the question mark and words like ``the`` come and go."""
    tokens = list(wording.tokens)
    if rng.random() < 0.25 and tokens[-1].text == "?":
        del tokens[-1]
    if rng.random() < 0.15:
        thin = rng.uniform(0.1, 0.6)
        tokens = [t for t in tokens if t.text.casefold() not in STOP_WORDS or rng.random() > thin]
    if rng.random() < 0.3:
        tokens = [Token(token.text.lower(), token.hop) for token in tokens]
    if not tokens or tuple(tokens) == wording.tokens:
        return wording
    text = " ".join(token.text for token in tokens)
    cut = sentence_words(text, ())
    return Wording(text, tuple(tokens)) if cut == [t.text for t in tokens] else wording


def rewritten(
    wording: Wording, hop: int, told: Sequence[Sequence[Told]]
) -> tuple[list[str], list[Mark], Wording] | None:
    """The infos, a label per word of FILTER's sentence, and the next query.

    Hops up to `hop` are known now: their words go, those of the answers stay, until the hop after
    has used the first one, the next the second one. None where the infos are cut
    otherwise than FILTER reads them.
    """
    infos = [" ".join(word.text for word in info) for info in told]
    flat = [word for info in told for word in info]
    cut = sentence_words(wording.text, infos)
    if cut != [t.text for t in wording.tokens] + [w.text for w in flat]:
        return None
    marks: list[Mark] = [1 if token.hop > hop else 0 for token in wording.tokens]
    marks += [1 if word.answer else 0 for word in flat]
    left = [token for token in wording.tokens if token.hop > hop]
    answers = [[word.text for word in info if word.answer] for info in told]
    for after, answer in enumerate(filter(None, answers), 1):
        left += [Token(word, hop + after) for word in answer]
    return infos, marks, Wording(" ".join(token.text for token in left), tuple(left))
