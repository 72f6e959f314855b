from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.domain import Passage, ScoredPassage
from service.core.settings import RetrievalSettings
from service.retrieval.search.fusion import (
    fuse,
    reciprocal_rank_fusion,
    weighted_fusion,
    z_scores,
)


def min_max(scores: Sequence[float]) -> list[float]:
    """Scores from 0 to 1, in which sums are easy to follow."""
    low, span = min(scores), max(scores) - min(scores)
    return [(score - low) / span if span else 1.0 for score in scores]


def ranking(*ids: str, text: str = "t") -> list[ScoredPassage]:
    return [ScoredPassage(Passage(i, i, text), rank, 9.0) for rank, i in enumerate(ids, 1)]


def scored(**scores: float) -> list[ScoredPassage]:
    """A ranking by score, ties by id, as a store gives it."""
    order = sorted(scores, key=lambda name: (-scores[name], name))
    return [
        ScoredPassage(Passage(name, name, "t"), rank, scores[name])
        for rank, name in enumerate(order, 1)
    ]


def ids(hits: Any) -> list[str]:
    return [hit.passage.passage_id for hit in hits]


RANKINGS = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-50, 50), max_size=6).map(
        lambda scores: scored(**scores)
    ),
    min_size=1,
    max_size=2,
)
WAYS: dict[str, Any] = {
    "rrf": lambda rankings, top_k=99: reciprocal_rank_fusion(rankings, 60, top_k),
    "min-max": lambda rankings, top_k=99: weighted_fusion(
        rankings, [0.3] * len(rankings), min_max, top_k
    ),
    "z": lambda rankings, top_k=99: weighted_fusion(
        rankings, [0.3] * len(rankings), z_scores, top_k
    ),
}


def test_scores_are_summed_over_rankings() -> None:
    fused = reciprocal_rank_fusion([ranking("a", "b"), ranking("b", "c")], k=60, top_k=5)
    assert ids(fused) == ["b", "a", "c"]
    assert [hit.rank for hit in fused] == [1, 2, 3]
    assert fused[0].score == pytest.approx(1 / 62 + 1 / 61)


def test_ties_go_by_id_and_the_cut_comes_last() -> None:
    fused = reciprocal_rank_fusion([ranking("z"), ranking("a")], k=60, top_k=1)
    assert ids(fused) == ["a"]


def test_the_first_ranking_is_believed_and_nothing_fuses_to_nothing() -> None:
    fused = reciprocal_rank_fusion([ranking("a", text="1"), ranking("a", text="2")], k=1, top_k=3)
    assert [hit.passage.text for hit in fused] == ["1"]
    assert reciprocal_rank_fusion([[], []], k=60, top_k=3) == ()
    assert weighted_fusion([[], []], [1, 1], min_max, top_k=3) == ()


def test_weights_move_the_order() -> None:
    bm25, dense = scored(a=20, b=10, c=0), scored(b=0.9, c=0.8, a=0.5)
    by_weight = {
        weight: ids(weighted_fusion([bm25, dense], [1 - weight, weight], min_max, 3))
        for weight in (0.0, 0.5, 1.0)
    }
    assert by_weight == {0.0: ["a", "b", "c"], 0.5: ["b", "a", "c"], 1.0: ["b", "c", "a"]}


def test_what_a_ranking_lacks_counts_as_its_worst() -> None:
    fused = weighted_fusion([scored(a=3, b=2, c=1), scored(c=5, d=4)], [1, 1], min_max, 9)
    assert {hit.passage.passage_id: hit.score for hit in fused} == {
        "a": 1,
        "b": 0.5,
        "c": 1,
        "d": 0,
    }
    assert ids(fused) == ["a", "c", "b", "d"]


def test_equal_scores_are_normalised_alike() -> None:
    assert z_scores([4.0, 4.0]) == [0.0, 0.0]
    assert z_scores([1.0, 3.0]) == [-1.0, 1.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_z_scores_are_in_standard_deviations(scores: list[float]) -> None:
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    made = z_scores(scores)
    if deviation > 1e-9 * max(map(abs, scores)):  # else rounding decides
        expected = [(score - mean) / deviation for score in scores]
        assert made == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, made)) <= len(scores)


@pytest.mark.parametrize("way", WAYS)
@given(rankings=RANKINGS, data=st.data())
def test_the_order_of_rankings_makes_no_difference(way: str, rankings: Any, data: Any) -> None:
    other = data.draw(st.permutations(rankings))
    assert WAYS[way](rankings) == WAYS[way](other)


@pytest.mark.parametrize("way", WAYS)
@given(rankings=RANKINGS)
def test_every_passage_comes_once_by_score_then_id(way: str, rankings: Any) -> None:
    fused = WAYS[way](rankings)
    assert sorted(ids(fused)) == sorted({name for hits in rankings for name in ids(hits)})
    order = [(-hit.score, hit.passage.passage_id) for hit in fused]
    assert order == sorted(order)
    assert [hit.rank for hit in fused] == list(range(1, len(fused) + 1))
    assert WAYS[way](rankings, 2) == fused[:2]


@pytest.mark.parametrize("way", WAYS)
@given(rankings=RANKINGS)
def test_with_one_side_empty_the_other_keeps_its_order(way: str, rankings: Any) -> None:
    own = rankings[0]
    fused = WAYS[way]([own, []])
    if way == "rrf":
        assert ids(fused) == ids(own)
    scores = {hit.passage.passage_id: hit.score for hit in own}
    kept = [scores[name] for name in ids(fused)]
    assert kept == pytest.approx(sorted(kept, reverse=True), abs=1e-9)


def test_the_settings_choose() -> None:
    bm25, dense = scored(a=20, b=10, c=0), scored(b=0.9, c=0.8, a=0.5)

    def order(**settings: Any) -> list[str]:
        return ids(fuse(bm25, dense, RetrievalSettings(**settings), 3))

    assert order() == order(fusion="weighted", dense_weight=0.5)
    assert order(fusion="rrf") == ids(reciprocal_rank_fusion([bm25, dense], 60, 3))
    assert order(fusion="weighted", dense_weight=0) == ["a", "b", "c"]
    assert order(fusion="weighted", dense_weight=1) == ["b", "c", "a"]
