"""A reference implementation of Lucene's BM25 for tests, with k1 = 1.2 and b = 0.75."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

K1, B = 1.2, 0.75


def bm25(words: Sequence[str], texts: Mapping[str, str]) -> dict[str, float]:
    """Return the score of each text that contains one of the words. Words are separated by
    spaces."""
    corpus = {name: text.split() for name, text in texts.items()}
    filled = [text for text in corpus.values() if text]
    average = sum(map(len, filled)) / max(1, len(filled))
    scores: dict[str, float] = {}
    for word in words:
        having = sum(word in text for text in filled)
        idf = math.log(1 + (len(filled) - having + 0.5) / (having + 0.5))
        for name, text in corpus.items():
            if often := text.count(word):
                length = 1 - B + B * len(text) / average
                gain = idf * often * (K1 + 1) / (often + K1 * length)
                scores[name] = scores.get(name, 0.0) + gain
    return scores
