"""What a fusion of two rankings keeps, and in which order."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.domain import Passage, ScoredPassage
from service.retrieval.search.fusion import fuse, z_scores


def scored(text: str = "t", **scores: float) -> list[ScoredPassage]:
    """A ranking by score, ties by id, as a store gives it."""
    order = sorted(scores, key=lambda name: (-scores[name], name))
    return [
        ScoredPassage(Passage(name, name, text), rank, scores[name])
        for rank, name in enumerate(order, 1)
    ]


def ids(hits: Any) -> list[str]:
    return [hit.passage.passage_id for hit in hits]


RANKING = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-50, 50), max_size=6).map(
    lambda scores: scored(**scores)
)


@pytest.mark.parametrize(("weight", "order"), [(0.0, "abc"), (0.5, "bac"), (1.0, "bca")])
def test_weights_move_the_order(weight: float, order: str) -> None:
    bm25, dense = scored(a=20, b=15, c=0), scored(b=0.9, c=0.8, a=0.5)
    assert ids(fuse(bm25, dense, weight, 3)) == list(order)


def test_what_a_ranking_lacks_counts_as_its_worst_and_bm25_is_believed() -> None:
    fused = fuse(scored("bm25", a=3, b=1), scored("dense", b=5, c=3), 0.5, 9)
    assert {hit.passage.passage_id: hit.score for hit in fused} == {"a": 0, "b": 0, "c": -1}
    assert [hit.passage.text for hit in fused] == ["bm25", "bm25", "dense"]
    assert fuse([], [], 0.5, 3) == ()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_z_scores_are_in_standard_deviations(scores: list[float]) -> None:
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    made = z_scores(scores)
    if deviation > 1e-9 * max(map(abs, scores)):  # else rounding decides
        expected = [(score - mean) / deviation for score in scores]
        assert made == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, made)) <= len(scores)
    assert z_scores([4.0, 4.0]) == [0.0, 0.0]


@given(one=RANKING, other=RANKING)
def test_every_passage_comes_once_by_score_then_id_whichever_side_found_it(
    one: Any, other: Any
) -> None:
    fused = fuse(one, other, 0.5, 99)
    assert sorted(ids(fused)) == sorted({*ids(one), *ids(other)})
    order = [(-hit.score, hit.passage.passage_id) for hit in fused]
    assert order == sorted(order)
    assert [hit.rank for hit in fused] == list(range(1, len(fused) + 1))
    assert fuse(other, one, 0.5, 99) == fused
    assert fuse(one, other, 0.5, 2) == fused[:2]
