"""Alignment of copied words (METHODS.md §4.5, step 3), by hand."""

from __future__ import annotations

from service.workshop.synthesis.pipelines.efficientrag import LEAP, REACH, align

TEXT = ["Norma", "(", "opera", ")", ":", "Norma", "is", "an", "opera", "by", "Vincenzo", "Bellini"]


def marked(words: list[str], extracted: str) -> list[str]:
    return [
        f"{place}:{word}"
        for place, (word, mark) in enumerate(
            zip(words, align(words, extracted.split()), strict=True)
        )
        if mark
    ]


def test_words_are_found_in_order_without_case() -> None:
    assert marked(TEXT, "norma opera vincenzo Bellini") == [
        "0:Norma", "2:opera", "10:Vincenzo", "11:Bellini",
    ]  # fmt: skip


def test_no_word_is_taken_twice_and_the_second_goes_to_the_next_place() -> None:
    assert marked(TEXT, "Norma Norma Norma") == ["0:Norma", "5:Norma"]


def test_forward_goes_before_backward_at_one_distance() -> None:
    words = ["x", "a", "x", "b", "x"]
    assert marked(words, "b x") == ["3:b", "4:x"]
    assert marked(words, "b x x") == ["2:x", "3:b", "4:x"]


def test_what_is_not_found_is_dropped() -> None:
    assert marked(TEXT, "Verdi by") == ["9:by"]
    assert align([], ["a"]) == []


def test_a_word_beyond_reach_is_not_found() -> None:
    assert align([*["x"] * (REACH - 1), "a"], ["a"])[-1] == 1
    assert align([*["x"] * REACH, "a"], ["a"])[-1] == 0


def test_a_leap_moves_the_cursor_no_further_than_the_limit() -> None:
    words = ["x"] * 400
    words[140] = "a"
    words[LEAP + REACH - 1] = "b"  # in reach of the cursor at LEAP, the limit
    assert align(words, ["a", "b"])[LEAP + REACH - 1] == 1
    words[LEAP + REACH - 1], words[LEAP + REACH] = "x", "b"  # of 140 it would be
    assert align(words, ["a", "b"])[LEAP + REACH] == 0
