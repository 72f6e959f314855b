"""In-memory BM25 over passages, for distractors and negatives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.splits import canonical_form

K1, B = 1.2, 0.75
COMMON = 0.25


class Nearest:
    """Finds the passages closest to a question by BM25.

    Words that occur in a quarter of the passages are ignored.
    """

    def __init__(self, passages: Sequence[Paragraph]) -> None:
        self.passages = list(passages)
        counts = [Counter(canonical_form(f"{p.title} {p.text}").split()) for p in self.passages]
        lengths = np.array([sum(count.values()) for count in counts], dtype=np.float32)
        scale = K1 * (1 - B + B * lengths / lengths.mean())
        places: dict[str, list[int]] = {}
        for number, count in enumerate(counts):
            for word in count:
                places.setdefault(word, []).append(number)
        self.postings: dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
        for word, numbers in places.items():
            if len(numbers) > COMMON * len(counts):
                continue
            rows = np.array(numbers)
            times = np.array([counts[n][word] for n in numbers], dtype=np.float32)
            rarity = math.log(1 + (len(counts) - len(rows) + 0.5) / (len(rows) + 0.5))
            self.postings[word] = (rows, rarity * times * (K1 + 1) / (times + scale[rows]))

    def search(self, question: str, size: int = 10) -> list[Paragraph]:
        """Return at most `size` passages that share a word with the question, best first."""
        scores = np.zeros(len(self.passages), dtype=np.float32)
        for word in set(canonical_form(question).split()):
            if word in self.postings:
                rows, values = self.postings[word]
                scores[rows] += values
        size = min(size, len(self.passages))
        best = np.argpartition(-scores, size - 1)[:size]
        ordered = best[np.argsort(-scores[best], kind="stable")]
        return [self.passages[int(n)] for n in ordered if scores[n] > 0]
