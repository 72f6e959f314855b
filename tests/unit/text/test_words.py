"""The words of a text, as labels count them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.words import word_spans


def cut(text: str) -> list[str]:
    return [word.text for word in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("born in Catania, Sicily.", ["born", "in", "Catania", "Sicily", "."]),
        ("Bellini's opera", ["Bellini", "'s", "opera"]),
        ("they don't, can’t", ["they", "do", "n't", "ca", "n’t"]),
        ("J. S. Bach of the U.S. team", ["J.", "S.", "Bach", "of", "the", "U.S.", "team"]),
        ("1,000.5 km at 10:30", ["1,000.5", "km", "at", "10:30"]),
        ("well-known (1831)", ["well", "-", "known", "(", "1831", ")"]),
        ("O'Brien", ["O'Brien"]),
        ("", []),
        (" , ", []),
    ],
)
def test_words_are_cut_as_plain_english_is(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


@given(st.text())
def test_a_word_is_where_it_says_and_nothing_but_space_and_commas_is_lost(text: str) -> None:
    found = word_spans(text)
    rest, end = "", 0
    for word in found:
        assert text[word.start : word.end] == word.text
        rest += text[end : word.start]
        end = word.end
    assert not (rest + text[end:]).replace(",", "").strip()


@given(st.text(alphabet=st.sampled_from("aBns'’.,-:1 (tT_")) | st.text())
def test_words_joined_by_spaces_are_cut_alike(text: str) -> None:
    assert cut(" ".join(cut(text))) == cut(text)
