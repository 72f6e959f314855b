from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.generation.base import Delta, TokenUsage
from service.generation.thinking import ThinkFilter, strip_thinking, without_thinking

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
]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(("text", "shown"), CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_reasoning_is_removed_wherever_pieces_end(text: str, shown: str, size: int) -> None:
    thinking = ThinkFilter()
    out = [thinking.feed(text[at : at + size]) for at in range(0, len(text), size)]

    assert "".join([*out, thinking.flush()]) == shown


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "<reasoning>", "<", "<th", "/", "Paris", " ", ">"])
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_pieces_do_not_matter(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    whole, cut = ThinkFilter(), ThinkFilter()
    expected = whole.feed(text) + whole.flush()

    got = "".join(cut.feed(piece) for piece in pieces_of(text, cuts)) + cut.flush()

    assert got == expected
    assert "<think>" not in got


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

    assert thinking.feed("Let me see.</think>Paris") == "Let me see.Paris"
    assert thinking.unopened


@pytest.mark.anyio
async def test_deltas_keep_their_end() -> None:
    usage = TokenUsage(3, 4)

    async def source() -> AsyncIterator[Delta]:
        for text in ["<think>", "hm", "</think>", "\nPa", "ris <"]:
            yield Delta(text)
        yield Delta("", finish="stop", usage=usage)

    deltas = [delta async for delta in without_thinking(source())]

    assert [delta.text for delta in deltas] == ["Pa", "ris ", "<"]
    assert (deltas[-1].finish, deltas[-1].usage) == ("stop", usage)
