"""Fuse two rankings into one by weighted sums of z-scores (pure). Swapping the two does not change
the order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.core.domain import ScoredPassage
from service.retrieval.base import ranked

Ranking = Sequence[ScoredPassage]


def fuse(
    bm25: Ranking, dense: Ranking, dense_weight: float, top_k: int
) -> tuple[ScoredPassage, ...]:
    """Return the best `top_k` by the weighted sum of each ranking's normalised scores; BM25 has
    what is left of the weight.

    A passage that is missing in a ranking gets the score of its worst one. Ties are ordered by
    passage id. Where rankings disagree on a passage's text, the first one that has it is believed.
    """
    found = {hit.passage.passage_id: hit.passage for hits in (dense, bm25) for hit in hits}
    scores = dict.fromkeys(found, 0.0)
    for hits, weight in ((bm25, 1.0 - dense_weight), (dense, dense_weight)):
        if not hits:
            continue
        normal = z_scores([hit.score for hit in hits])
        known = {hit.passage.passage_id: score for hit, score in zip(hits, normal, strict=True)}
        worst = min(normal)
        for passage_id in scores:
            scores[passage_id] += weight * known.get(passage_id, worst)
    return tuple(ranked((score, found[passage_id]) for passage_id, score in scores.items())[:top_k])


def z_scores(scores: Sequence[float]) -> list[float]:
    """Scale scores to mean 0 and standard deviation 1. All become 0 if they are equal."""
    mean, span = math.fsum(scores) / len(scores), max(scores) - min(scores)
    if not span:
        return [0.0] * len(scores)
    # statistics.pstdev computes with fractions, which takes nine times as long. The span keeps the
    # squares of close scores above zero.
    parts = [(score - mean) / span for score in scores]
    deviation = math.sqrt(math.fsum([part * part for part in parts]) / len(parts))
    return [part / deviation for part in parts]
