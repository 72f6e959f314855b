"""Two or more rankings become one. Pure; the order of the rankings makes no difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from service.domain import Passage, ScoredPassage
from service.settings import RetrievalSettings

Ranking = Sequence[ScoredPassage]
Normalise = Callable[[Sequence[float]], list[float]]


def fuse(
    bm25: Ranking, dense: Ranking, settings: RetrievalSettings, top_k: int
) -> tuple[ScoredPassage, ...]:
    """The best `top_k` of both, as `retrieval.fusion` says."""
    if settings.fusion == "rrf":
        return reciprocal_rank_fusion((bm25, dense), settings.rrf_k, top_k)
    weights = (1.0 - settings.dense_weight, settings.dense_weight)
    normalise = min_max if settings.normalisation == "min-max" else z_scores
    return weighted_fusion((bm25, dense), weights, normalise, top_k)


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking], k: int, top_k: int
) -> tuple[ScoredPassage, ...]:
    """The best `top_k`: a passage scores the sum of 1 / (k + rank) over the rankings it is in.

    Ranks count from 1; ties go by passage id (Cormack, Clarke and Büttcher, SIGIR 2009).
    """
    shares = ((hit.passage.passage_id, 1.0 / (k + hit.rank)) for hits in rankings for hit in hits)
    return _best(rankings, shares, top_k)


def weighted_fusion(
    rankings: Sequence[Ranking], weights: Sequence[float], normalise: Normalise, top_k: int
) -> tuple[ScoredPassage, ...]:
    """The best `top_k` by the weighted sum of each ranking's normalised scores.

    A passage that a ranking lacks counts there as its worst one. Ties go by passage id.
    """
    shares: list[tuple[str, float]] = []
    ids = {hit.passage.passage_id for hits in rankings for hit in hits}
    for hits, weight in zip(rankings, weights, strict=True):
        if not hits:
            continue
        scores = normalise([hit.score for hit in hits])
        own = {hit.passage.passage_id: score for hit, score in zip(hits, scores, strict=True)}
        worst = min(scores)
        shares += [(passage_id, weight * own.get(passage_id, worst)) for passage_id in ids]
    return _best(rankings, shares, top_k)


def min_max(scores: Sequence[float]) -> list[float]:
    """To 0 … 1, the best is 1; all 1 where they are equal."""
    low, span = min(scores), max(scores) - min(scores)
    return [(score - low) / span if span else 1.0 for score in scores]


def z_scores(scores: Sequence[float]) -> list[float]:
    """To mean 0 and standard deviation 1; all 0 where they are equal."""
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    return [(score - mean) / deviation if deviation else 0.0 for score in scores]


def _best(
    rankings: Sequence[Ranking], shares: Iterable[tuple[str, float]], top_k: int
) -> tuple[ScoredPassage, ...]:
    """Where rankings disagree on a passage's text, the first one that has it is believed."""
    parts: dict[str, list[float]] = {}
    for passage_id, share in shares:
        parts.setdefault(passage_id, []).append(share)
    scores = {passage_id: math.fsum(part) for passage_id, part in parts.items()}
    passages: dict[str, Passage] = {}
    for hits in rankings:
        for hit in hits:
            passages.setdefault(hit.passage.passage_id, hit.passage)
    best = sorted(scores, key=lambda passage_id: (-scores[passage_id], passage_id))[:top_k]
    return tuple(
        ScoredPassage(passages[passage_id], rank, scores[passage_id])
        for rank, passage_id in enumerate(best, 1)
    )
