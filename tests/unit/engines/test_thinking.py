from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.reasoning import ThinkFilter, strip_thinking

CASES = [
    ("Paris", "Paris"),
    ("<think>Hm, a river.</think>Paris", "Paris"),
    ("<think>\nHm.\n</think>\n\nParis is it.", "Paris is it."),
    ("<THINKING>no</THINKING> Paris", "Paris"),
    ("<reasoning>a < b</reasoning>Paris", "Paris"),
    ("Paris <think>was that right?</think>in France", "Paris in France"),
    ("<think>never closed", ""),
    ("a <b> c </b> <thin", "a <b> c </b> <thin"),
    ("x < y <", "x < y <"),
    ("<think>one</think><think>two</think>Paris", "Paris"),
    ("<think>one<think>two</think>one</think>Paris", "Paris"),
    ("Let me see.</think>Paris", "Paris"),
    ("Let me</think> see <think>more</think>Paris", "see Paris"),
    ("<think>a</think>b</think>Paris", "Paris"),
]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def shown_of(pieces: Iterable[str]) -> str:
    """What stands at the end for someone who voids what turns out to be reasoning."""
    thinking, text = ThinkFilter(), ""
    for piece in pieces:
        shown = thinking.feed(piece)
        text = shown if thinking.take_unopened() else text + shown
    return text + thinking.flush()


@pytest.mark.parametrize(("text", "shown"), CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_reasoning_is_removed_wherever_pieces_end(text: str, shown: str, size: int) -> None:
    assert shown_of(text[at : at + size] for at in range(0, len(text), size)) == shown


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "<reasoning>", "<", "<th", "/", "Paris", " ", ">"])
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_pieces_do_not_matter(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    got = shown_of(pieces_of(text, cuts))

    assert got.strip() == shown_of([text]).strip() == strip_thinking(text)
    assert "think>" not in got


def test_text_is_shown_as_soon_as_it_cannot_become_a_tag() -> None:
    thinking = ThinkFilter()

    assert thinking.feed("Paris <") == "Paris "
    assert thinking.feed("thi") == ""
    assert thinking.feed("rd> it") == "<third> it"


def test_whole_texts_lose_a_block_that_nothing_opened() -> None:
    assert strip_thinking("Let me see.\n</think>\n\nParis") == "Paris"
    assert strip_thinking("  <think>a</think> Paris \n") == "Paris"


def test_a_stream_says_when_what_it_showed_was_reasoning() -> None:
    thinking = ThinkFilter()

    assert thinking.feed("Let me see.") == "Let me see."
    assert not thinking.take_unopened()
    assert thinking.feed("</think>Paris") == "Paris"
    assert thinking.take_unopened()
    assert not thinking.take_unopened()
