from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.signals import Span
from service.strategies.dragin.words import group_words, join
from tests.unit.strategies.dragin.drafts import spans_of


def words(pieces: list[str], spans: list[Span] | None = None) -> list[tuple[str, list[int]]]:
    grouped = group_words("".join(pieces), spans or spans_of(pieces))
    return [(word.text, list(word.tokens)) for word in grouped]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # Llama-2: the mark is a space of the piece; punctuation joins the word before it.
        (["Nor", "ma", " was", " sung", "."], [("Norma", [0, 1]), ("was", [2]), ("sung.", [3, 4])]),
        # A line break starts a word, and what follows without a mark joins it (id 13).
        (["No", ".", "\n", "Question", ":"], [("No.", [0, 1]), ("Question:", [2, 3, 4])]),
        # Llama-3: line breaks in one token, the space before the next word in its piece.
        (["a", ".\n\n", "So", " b"], [("a.\n\nSo", [0, 1, 2]), ("b", [3])]),
        # A lone mark is a word of nothing.
        (["a", " ", " b"], [("a", [0]), ("", [1]), ("b", [2])]),
        (["a", " b", ""], [("a", [0]), ("b", [1, 2])]),
        (["", "a"], [("a", [0, 1])]),
        ([" a"], [("a", [0])]),
        ([], []),
    ],
)
def test_a_word_starts_where_white_space_comes(
    pieces: list[str], expected: list[tuple[str, list[int]]]
) -> None:
    assert words(pieces) == expected


def test_tokenizers_that_leave_spaces_out_of_their_places_give_the_same_words() -> None:
    text = "In  which\ncity?"
    trimmed = [(0, 2), (4, 9), (10, 14), (14, 15)]
    assert [w.text for w in group_words(text, trimmed)] == ["In", "which", "city?"]


def test_tokens_of_one_character_stay_together() -> None:
    assert words(["a", "", " ü", "b"], [(0, 1), (1, 3), (1, 3), (3, 4)]) == [
        ("a", [0]),
        ("üb", [1, 2, 3]),
    ]


@given(st.lists(st.text("ab .\n", max_size=4), max_size=12))
def test_words_share_out_all_tokens_in_order(pieces: list[str]) -> None:
    text = "".join(pieces)
    grouped = group_words(text, spans_of(pieces), 7)
    assert [token for word in grouped for token in word.tokens] == [
        n + 7 for n in range(len(pieces))
    ]
    for word in grouped:
        assert text[slice(*word.span)] == word.text
        assert word.text == word.text.strip()
    assert all(left.span[1] <= right.span[0] for left, right in pairwise(grouped))


def test_join_leaves_out_what_is_empty() -> None:
    assert join(" a ", "", "  ", "b c") == "a b c"
    assert join("", "") == ""
