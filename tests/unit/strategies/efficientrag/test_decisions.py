"""What follows a hop, and what the reader is shown, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.encoders.base import PassageLabel, Tag
from service.strategies.efficientrag import (
    CandidatePool,
    Read,
    after_filter,
    after_labels,
    as_tagged,
)
from tests.support.asking import passage

OFFICIAL, SERVICE = True, False  # the profiles
ON = PassageLabel(Tag.CONTINUE, "Vincenzo Bellini", 0.8)
UNMARKED = PassageLabel(Tag.CONTINUE, "", 0.7)
OFF = PassageLabel(Tag.TERMINATE, "stray", 0.9)
DONE = PassageLabel(Tag.FINISH, "born Catania", 0.6)


@pytest.mark.parametrize("official", [OFFICIAL, SERVICE])
def test_the_infos_of_passages_to_go_on_from_are_asked_for(official: bool) -> None:
    assert after_labels([ON, OFF, ON], 2, 3, official) == (ON.info, ON.info)


def test_a_hop_without_a_passage_to_go_on_from_is_the_last() -> None:
    assert after_labels([OFF, OFF], 0, 3, SERVICE) == Read()
    assert after_labels([OFF, DONE], 1, 3, SERVICE) == Read()
    assert after_labels([], 0, 3, SERVICE) == Read()


def test_an_answering_passage_adds_its_words_with_two_tags_only() -> None:
    assert after_labels(as_tagged([ON, DONE], OFFICIAL), 2, 3, OFFICIAL) == (ON.info, DONE.info)
    assert after_labels(as_tagged([ON, DONE], SERVICE), 2, 3, SERVICE) == (ON.info,)


def test_without_marked_words_the_filter_reads_the_query_alone() -> None:
    assert after_labels([UNMARKED], 1, 3, SERVICE) == ()


def test_the_search_ends_after_the_last_hop() -> None:
    assert after_labels([ON], 1, 0, SERVICE) == Read(stopped_by="max_steps")
    assert after_labels([OFF], 0, 0, SERVICE) == Read()


def test_a_hop_that_adds_nothing_is_the_last_in_the_service_only() -> None:
    assert after_labels([ON], 0, 3, SERVICE) == Read(flag="no_new_evidence")
    assert after_labels([ON], 0, 3, OFFICIAL) == (ON.info,)


def test_a_query_like_the_one_before_ends_the_search_in_the_service_only() -> None:
    assert after_filter("Who wrote Norma?", "who wrote Norma ?", SERVICE) == Read(
        flag="no_progress"
    )
    assert after_filter("Who wrote Norma?", "who wrote Norma ?", OFFICIAL) == "who wrote Norma ?"
    assert after_filter("Who wrote Norma?", "born Bellini", SERVICE) == "born Bellini"


@pytest.mark.parametrize("official", [OFFICIAL, SERVICE])
def test_an_empty_query_is_never_searched(official: bool) -> None:
    assert after_filter("Who wrote Norma?", "", official) == Read(flag="no_progress")


def test_the_pool_has_hop_order_then_rank_and_each_passage_once() -> None:
    a, b, c = (passage(name, name) for name in "abc")
    pool = CandidatePool(deduplicate=True)
    first = pool.add("1", [a, b], [ON, OFF])
    second = pool.add("2", [c, a, b], [DONE, ON, ON])
    assert [choice.kept for choice in first + second] == [True, False, True, False, True]
    assert second[1].reason == "continue (0.80), already in the pool"
    assert [(each.passage.passage_id, each.step) for each in pool.candidates] == [
        ("a", "1"),
        ("c", "2"),
        ("b", "2"),
    ]


def test_repeats_stay_where_they_are_not_taken_out() -> None:
    a = passage("a", "a")
    pool = CandidatePool(deduplicate=False)
    pool.add("1", [a], [ON])
    assert pool.add("2", [a], [ON])[0].kept
    assert [each.step for each in pool.to_read(None, None)] == ["1", "2"]


def test_where_few_may_be_read_who_finishes_comes_first_then_the_surest() -> None:
    pool = CandidatePool(deduplicate=True)
    pool.add("1", [passage("a", "a"), passage("b", "b"), passage("c", "c")], [UNMARKED, ON, DONE])

    def read(most: int | None, room: int | None = None) -> str:
        return "".join(each.passage.passage_id for each in pool.to_read(most, room))

    assert read(None) == read(3) == read(None, 10_000) == "abc"
    assert read(2) == "cb"
    assert read(1) == "c"
    assert read(None, 40) == "cb"
    assert read(None, 0) == ""


def test_nearly_equal_probabilities_leave_the_order_of_the_pool() -> None:
    pool = CandidatePool(deduplicate=True)
    labels = [replace(ON, probability=share) for share in (0.62, 0.96, 0.98)]
    pool.add("1", [passage("a", "a"), passage("b", "b"), passage("c", "c")], labels)
    assert [each.passage.passage_id for each in pool.to_read(2, None)] == ["b", "c"]
