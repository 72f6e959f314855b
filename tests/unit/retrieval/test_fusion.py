from __future__ import annotations

import pytest

from service.domain import Passage, ScoredPassage
from service.retrieval.fusion import reciprocal_rank_fusion


def ranking(*ids: str, text: str = "t") -> list[ScoredPassage]:
    return [ScoredPassage(Passage(i, i, text), rank, 9.0) for rank, i in enumerate(ids, 1)]


def test_scores_are_summed_over_rankings() -> None:
    fused = reciprocal_rank_fusion([ranking("a", "b"), ranking("b", "c")], k=60, top_k=5)
    assert [hit.passage.passage_id for hit in fused] == ["b", "a", "c"]
    assert [hit.rank for hit in fused] == [1, 2, 3]
    assert fused[0].score == pytest.approx(1 / 62 + 1 / 61)


def test_ties_go_by_id_and_the_cut_comes_last() -> None:
    fused = reciprocal_rank_fusion([ranking("z"), ranking("a")], k=60, top_k=1)
    assert [hit.passage.passage_id for hit in fused] == ["a"]


def test_the_first_ranking_is_believed_and_nothing_fuses_to_nothing() -> None:
    fused = reciprocal_rank_fusion([ranking("a", text="1"), ranking("a", text="2")], k=1, top_k=3)
    assert [hit.passage.text for hit in fused] == ["1"]
    assert reciprocal_rank_fusion([[], []], k=60, top_k=3) == ()
