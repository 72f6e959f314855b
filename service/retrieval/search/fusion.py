"""Fuse two rankings into one (pure). Swapping the two does not change the order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from service.core.domain import ScoredPassage
from service.core.settings import RetrievalSettings

RRF_K: Final = 60  # as in the paper cited below

Ranking = Sequence[ScoredPassage]
Normalise = Callable[[Sequence[float]], list[float]]


def fuse(
    bm25: Ranking, dense: Ranking, settings: RetrievalSettings, top_k: int
) -> tuple[ScoredPassage, ...]:
    """Return the best `top_k` of both, fused according to `retrieval.fusion`."""
    if settings.fusion == "rrf":
        return reciprocal_rank_fusion((bm25, dense), RRF_K, top_k)
    weights = (1.0 - settings.dense_weight, settings.dense_weight)
    return weighted_fusion((bm25, dense), weights, z_scores, top_k)


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking], k: int, top_k: int
) -> tuple[ScoredPassage, ...]:
    """Return the best `top_k` by the sum of 1 / (k + rank) over the rankings that contain a
    passage.

    Ranks count from 1; ties are ordered by passage id (Cormack, Clarke and Büttcher, SIGIR 2009).
    """
    scores: dict[str, float] = {}
    for hits in rankings:
        for hit in hits:
            passage_id = hit.passage.passage_id
            scores[passage_id] = scores.get(passage_id, 0.0) + 1.0 / (k + hit.rank)
    return _best(rankings, scores, top_k)


def weighted_fusion(
    rankings: Sequence[Ranking], weights: Sequence[float], normalise: Normalise, top_k: int
) -> tuple[ScoredPassage, ...]:
    """Return the best `top_k` by the weighted sum of each ranking's normalised scores.

    A passage that is missing in a ranking gets the score of its worst one. Ties are ordered by
    passage id.
    """
    scores = {hit.passage.passage_id: 0.0 for hits in rankings for hit in hits}
    for hits, weight in zip(rankings, weights, strict=True):
        if not hits:
            continue
        normal = normalise([hit.score for hit in hits])
        own = {hit.passage.passage_id: score for hit, score in zip(hits, normal, strict=True)}
        worst = min(normal)
        for passage_id in scores:
            scores[passage_id] += weight * own.get(passage_id, worst)
    return _best(rankings, scores, top_k)


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


def _best(
    rankings: Sequence[Ranking], scores: Mapping[str, float], top_k: int
) -> tuple[ScoredPassage, ...]:
    """Where rankings disagree on a passage's text, the first one that has it is believed."""
    best = sorted([(-score, passage_id) for passage_id, score in scores.items()])[:top_k]
    passages = {hit.passage.passage_id: hit.passage for hits in reversed(rankings) for hit in hits}
    return tuple(
        ScoredPassage(passages[passage_id], rank, scores[passage_id])
        for rank, (_, passage_id) in enumerate(best, 1)
    )
