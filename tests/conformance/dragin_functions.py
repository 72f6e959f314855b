"""RIND and QFS on random cases, against the official DRAGIN's own functions.

`dragin_functions.json` has a digest of what `AttnWeightRAG.modifier` and `keep_real_words` made
of the drafts, attentions and entropies of 3,000 and 1,500 random cases, in double precision.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from service.engines.signals import AttentionRow, DraftToken, ScoredToken, Scoring, Span
from service.strategies.dragin import OFFICIAL, DraftWatch
from service.strategies.rind import keep_content_words, text_context, word_attention
from service.text.tagging import open_splitter, open_tagger

RECORD: Final = Path(__file__).with_suffix(".json")
RIND, QFS = 3_000, 1_500
TAGGER, SPLITTER = open_tagger("stopwords"), open_splitter("own")
WORDS: Final = [
    "Norma", "Bellini", "the", "of", "was", "born", "in", "1801", "Catania,", "an", "opera", "by",
    "Vincenzo", "He", "died", "on", "3.5", "Dr.", "U.S.", "it", "and", "Verdi's", "composer",
    "(Aida)", '"I', "then", "It", "Who?", "so", "answer", "is", "Palermo.", "wrote", "first.",
    "né", "12,000", "a-b",
]  # fmt: skip


def pieces_of(rng: random.Random, words: Sequence[str]) -> list[str]:
    """The tokens of words, one to three each; the first of a word brings the space before it."""
    pieces: list[str] = []
    for number, word in enumerate(words):
        cuts = sorted(rng.sample(range(1, len(word)), min(rng.choice((0, 0, 1, 2)), len(word) - 1)))
        parts = [word[a:b] for a, b in zip([0, *cuts], [*cuts, len(word)], strict=True)]
        pieces += [f" {parts[0]}" if number else parts[0], *parts[1:]]
    return pieces


def words_of(rng: random.Random, most: int) -> list[str]:
    words: list[str] = []
    for _ in range(rng.randint(1, most)):
        words += rng.choices(WORDS, k=rng.randint(1, 8))
        words[-1] = words[-1].rstrip(".,?") + rng.choice((".", ".", "?", "!", ""))
    return words


def merged(pieces: Sequence[str]) -> list[range]:
    """The tokens of each word, by the rule of the official code."""
    starts = [n for n, piece in enumerate(pieces) if not n or piece[0] == " "]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def spans_of(pieces: Sequence[str]) -> list[Span]:
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return list(pairwise(ends))


@dataclass(frozen=True)
class Draft:
    """A case of RIND: the tokens of a draft with the attention and the entropy of each, and θ."""

    pieces: list[str]
    attention: list[float]
    entropy: list[float]
    threshold: float

    @staticmethod
    def drawn(seed: int) -> Draft:
        rng = random.Random(f"RIND {seed}")
        pieces = pieces_of(rng, words_of(rng, 5))
        entropy = [rng.expovariate(1.5) for _ in pieces]
        return Draft(pieces, [rng.uniform(0.01, 1) for _ in pieces], entropy, rng.uniform(0.5, 6))

    def ours(self) -> str:
        options = replace(OFFICIAL, threshold=self.threshold)
        watch = DraftWatch(options, TAGGER, SPLITTER)
        spans = spans_of(self.pieces)
        for n, (piece, weight) in enumerate(zip(self.pieces, self.entropy, strict=True)):
            watch.feed(DraftToken(n, piece, spans[n], weight, -weight, ()))
        scored = zip(spans, self.attention, strict=True)
        tokens = tuple(ScoredToken(n, span, own) for n, (span, own) in enumerate(scored))
        hit = watch.judge_rest(Scoring(tokens))
        if hit is None:
            return repr((False, watch.text))
        words = [scored.word.text for scored in hit.words]
        return repr((True, hit.previous, words, [int(flag) for flag in hit.flags]))


@dataclass(frozen=True)
class Query:
    """A case of QFS: a text and the words of a sentence after it, which of them are hits, n, and
    the attention from each token to those before it."""

    pieces: list[str]
    sentence: int
    flags: list[int]
    most: int
    rows: list[list[float]]

    @staticmethod
    def drawn(seed: int) -> Query:
        rng = random.Random(f"QFS {seed}")
        before, sentence = words_of(rng, 3), rng.choices(WORDS, k=rng.randint(1, 8))
        pieces = pieces_of(rng, [*before, *sentence])
        flags = [int(rng.random() < 0.4) for _ in sentence]
        flags[rng.randrange(len(flags))] = 1
        # The token before the text is number 0, and attends to itself alone.
        rows = [[rng.random() for _ in range(n + 1)] for n in range(len(pieces) + 1)]
        return Query(pieces, len(sentence), flags, rng.randint(1, 12), rows)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def words(self) -> list[str]:
        return ["".join(self.pieces[n] for n in word).strip() for word in merged(self.pieces)]

    def ours(self) -> str:
        spans = [(0, 0), *spans_of(self.pieces)]
        hits, place = [], len(self.text)
        for word, flag in zip(self.words()[::-1], self.flags[::-1], strict=False):
            if flag:
                hits.append((place - len(word), place))
            place -= len(word) + 1
        scored = tuple(ScoredToken(n, span, 0.0) for n, span in enumerate(spans))
        context = text_context(self.text, hits, Scoring(scored))
        rows = [AttentionRow(n, tuple(self.rows[n - 1])) for n in range(1, len(spans))]
        content = TAGGER(self.text)
        return keep_content_words(context, word_attention(context, rows), content, self.most)


def cases() -> Iterator[Draft | Query]:
    yield from map(Draft.drawn, range(RIND))
    yield from map(Query.drawn, range(QFS))


def digest(result: str) -> str:
    return hashlib.sha256(result.encode()).hexdigest()[:8]
