"""Reciprocal rank fusion: a passage scores the sum of 1 / (k + rank) over the rankings it is in."""

from __future__ import annotations

from collections.abc import Sequence

from service.domain import Passage, ScoredPassage


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[ScoredPassage]], k: int, top_k: int
) -> tuple[ScoredPassage, ...]:
    """The best `top_k` of several rankings (rank from 1), ties by passage id.

    Where rankings disagree on a passage's text, the first one that has it is believed.
    """
    scores: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for ranking in rankings:
        for hit in ranking:
            passage_id = hit.passage.passage_id
            passages.setdefault(passage_id, hit.passage)
            scores[passage_id] = scores.get(passage_id, 0.0) + 1.0 / (k + hit.rank)
    best = sorted(scores, key=lambda passage_id: (-scores[passage_id], passage_id))[:top_k]
    return tuple(
        ScoredPassage(passages[passage_id], rank, scores[passage_id])
        for rank, passage_id in enumerate(best, 1)
    )
