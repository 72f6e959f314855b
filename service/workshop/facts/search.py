"""In-memory search over passages for distractors and negatives: BM25, optionally with vectors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import anyio
import numpy as np
from numpy.typing import NDArray

from service.core.domain import Passage
from service.core.settings import RetrievalSettings
from service.retrieval.embedding import open_embedder, passage_input
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


TOP = 10
RANK_CONSTANT = 60  # the constant of reciprocal rank fusion


class PassageSearch:
    """In-memory BM25 and dense search over passages, fused by rank as in the service's hybrid
    search."""

    def __init__(self, passages: Sequence[Paragraph]) -> None:
        self.passages = list(passages)
        self.words = Nearest(passages)
        self.places = {passage.id: place for place, passage in enumerate(self.passages)}
        self.vectors = _embed([p.title for p in passages], [p.text for p in passages])

    def top(self, queries: Sequence[str]) -> list[list[Paragraph]]:
        """Return the best TOP passages of each query."""
        vectors = _embed_queries(queries)
        return [self._one(query, vector) for query, vector in zip(queries, vectors, strict=True)]

    def _one(self, query: str, vector: NDArray[np.float32]) -> list[Paragraph]:
        near = np.argsort(-(self.vectors @ vector), kind="stable")[:TOP].tolist()
        lexical = [self.places[passage.id] for passage in self.words.search(query, TOP)]
        scores: dict[int, float] = {}
        for ranked in (lexical, near):
            for rank, place in enumerate(ranked, 1):
                scores[place] = scores.get(place, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda place: -scores[place])[:TOP]
        return [self.passages[place] for place in best]


def _embed(titles: Sequence[str], texts: Sequence[str]) -> NDArray[np.float32]:
    served = [Passage("", title, text) for title, text in zip(titles, texts, strict=True)]
    embedder = open_embedder(RetrievalSettings())
    return np.array(
        anyio.run(embedder.embed_passages, [passage_input(p) for p in served]), np.float32
    )


def _embed_queries(queries: Sequence[str]) -> NDArray[np.float32]:
    embedder = open_embedder(RetrievalSettings())
    return np.array(anyio.run(embedder.embed_queries, list(queries)), np.float32)
