"""The inputs of labeler and filter, piece by piece, and how they are packed into passes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.encoders.in_process import PACK, PADDING, packs
from service.encoders.inputs import (
    NO_WORD,
    Encoded,
    encode_passages,
    encode_query,
    marked_text,
    passage_text,
)
from service.text.wordpiece import minilm_tokenizer

TOKENIZER: Any = minilm_tokenizer()
CLS, SEP = 101, 102
MARKS = ["[SEP]", "[CLS]", "Query:", "Info:", "; ", "QUERY :", "Ínfo", "Info", ",", ":", "_", "中"]
HOSTILE = st.lists(
    st.sampled_from([*MARKS, "\u200b", "\u0301", "[PAD]", "x", " "]) | st.text(max_size=5),
    max_size=12,
).map("".join)


def spelt(encoded: Encoded) -> list[str]:
    return [TOKENIZER.id_to_token(piece) for piece in encoded.ids]


def test_a_pair_is_query_and_passage_between_marks() -> None:
    text = passage_text("Norma", "by Vincenzo Bellini, 1831")
    (pair,) = encode_passages(TOKENIZER, "Who wrote Norma?", [text])
    assert pair.words == ["Norma", ":", "by", "Vincenzo", "Bellini", "1831"]
    assert spelt(pair) == [
        *("[CLS]", "who", "wrote", "norma", "?", "[SEP]"),
        *("norma", ":", "by", "vincenzo", "bell", "##ini", "1831", "[SEP]"),
    ]
    assert pair.word_of == [NO_WORD] * 6 + [0, 1, 2, 3, 4, 4, 5, NO_WORD]
    assert pair.types == [0] * 6 + [1] * 8
    assert [place for place, piece in enumerate(pair.ids) if piece in {CLS, SEP}] == [0, 5, 13]


def test_the_filter_reads_a_sentence_whose_markers_cannot_be_kept() -> None:
    encoded = encode_query(TOKENIZER, "born where?", ["Vincenzo Bellini", "Norma"])
    assert spelt(encoded) == [
        *("[CLS]", "query", ":", "born", "where", "?", "info", ":", "vincenzo", "bell", "##ini"),
        *(";", "info", ":", "norma", "[SEP]"),
    ]
    everything = marked_text(encoded, [1.0] * len(encoded.ids))
    assert everything == "born where ? Vincenzo Bellini Norma"


def test_infos_are_shortened_longest_first_and_the_query_is_kept() -> None:
    encoded = encode_query(TOKENIZER, "one two three", ["a b c d e f", "g h"], most=18)
    assert encoded.words == ["one", "two", "three", "a", "b", "c", "d", "g", "h"]
    assert len(encoded.ids) == 18
    assert encoded.ids[-1] == SEP


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        ([0, 0, 1, 2, 3, 9], "Vincenzo Bellini"),
        ([0, 0, 1, -2, 1, 9], "Vincenzo"),
        ([0, 0, -1, 2, -1, 9], "Bellini"),
        ([9, 9, -1, -1, -1, 9, 9], ""),
    ],
)
def test_a_word_is_marked_by_the_sum_of_its_pieces(margins: list[float], expected: str) -> None:
    (pair,) = encode_passages(TOKENIZER, "", ["Vincenzo Bellini"])
    assert spelt(pair) == ["[CLS]", "[SEP]", "vincenzo", "bell", "##ini", "[SEP]"]
    assert marked_text(pair, margins) == expected


@given(HOSTILE, HOSTILE)
def test_no_text_becomes_a_mark_of_the_labeler(query: str, passage: str) -> None:
    (pair,) = encode_passages(TOKENIZER, query, [passage])
    special = [place for place, piece in enumerate(pair.ids) if piece in {0, CLS, SEP, 103}]
    first = pair.types.index(1) - 1
    assert special == [0, first, len(pair.ids) - 1]
    assert all(word == NO_WORD for word in pair.word_of[: first + 1])


@given(HOSTILE, st.lists(HOSTILE, max_size=3))
def test_no_text_becomes_a_marker_of_the_filter(query: str, infos: list[str]) -> None:
    encoded = encode_query(TOKENIZER, query, infos, most=10_000)
    assert [place for place, piece in enumerate(encoded.ids) if piece in {0, CLS, SEP, 103}] == [
        0, len(encoded.ids) - 1,
    ]  # fmt: skip
    query_mark, info_mark, colon = (
        TOKENIZER.token_to_id(piece) for piece in ("query", "info", ":")
    )
    pairs = list(pairwise(encoded.ids))
    assert pairs.count((query_mark, colon)) == 1
    assert pairs.count((info_mark, colon)) == len(infos)


# Forward passes of inputs of nearly one length.


@given(st.lists(st.integers(1, 500)))
def test_every_input_is_in_one_pass_with_little_padding(lengths: list[int]) -> None:
    made = list(packs(lengths))
    assert sorted(index for pack in made for index in pack) == list(range(len(lengths)))
    for pack in made:
        padded = len(pack) * max(lengths[index] for index in pack)
        assert padded <= PACK
        assert sum(lengths[index] for index in pack) >= (1 - PADDING) * padded
