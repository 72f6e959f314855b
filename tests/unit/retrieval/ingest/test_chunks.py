from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.retrieval.documents import MOST_CHARACTERS, MOST_PIECES, Document, cut, passages_of
from service.text import sentences
from service.text.wordpiece import Pieces, count_pieces

WORDS = st.text(alphabet="abcdefgéß北12", min_size=1, max_size=12)
SENTENCES = st.lists(WORDS, min_size=1, max_size=40).map(lambda words: " ".join(words) + ". ")
LONG_TEXTS = st.lists(SENTENCES, min_size=1, max_size=40).map("".join)
UNBROKEN = st.text(alphabet="ab.,北 \n", min_size=1).map(lambda text: text * 400)


@settings(deadline=None, max_examples=60)
@given(LONG_TEXTS | UNBROKEN)
def test_chunks_cover_the_text_within_the_limits(text: str) -> None:
    spans = cut(text)
    reached = 0
    for start, end in spans:
        assert start <= reached < end
        assert count_pieces(text[start:end]) <= MOST_PIECES
        assert end - start <= MOST_CHARACTERS
        reached = end
    assert spans[0][0] == 0
    assert reached == len(text)


def test_a_short_document_is_one_passage_under_its_own_id() -> None:
    text = "  One sentence. Another.\n"
    [record] = passages_of(Document("d", "T", text, {"kind": "x"}))
    assert (record.passage.passage_id, record.passage.text) == ("d", text)
    assert record.passage.metadata == {"kind": "x"}
    assert (record.part, record.parts) == (0, 1)


def test_a_long_document_is_cut_at_sentences_with_one_of_overlap() -> None:
    told = [
        f"Sentence number {n} tells of the river {n} and its old stone bridge." for n in range(60)
    ]
    records = passages_of(Document("d", "T", " ".join(told)))
    assert [record.passage.passage_id for record in records] == [
        f"d#{n}" for n in range(1, len(records) + 1)
    ]
    assert len(records) > 2
    for record, following in pairwise(records):
        text, next_text = record.passage.text, following.passage.text
        last = [text[start:end].strip() for start, end in sentences(text)][-1]
        assert next_text.startswith(last)
        assert text.endswith(".")
    assert sorted({line for r in records for line in told if line in r.passage.text}) == sorted(
        told
    )


def test_exactly_200_pieces_stay_whole() -> None:
    assert len(cut(" ".join(["one"] * 200))) == 1
    assert len(cut(" ".join(["one"] * 201))) == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("naïve café 北京大学 ǅ ß İstanbul", 9), ("a\u200bb\u00a0c\ufffd\x00d", 2), ("x" * 150, 1),
        ("£5 °C №3 “q” ½ ﬁ", 9), ("한국어 テスト", 11), ("🎉🎉 ok", 2), (" \t\n", 0),
        ("e\u0301te\u0301", 2), ("don't-stop_now", 7), ("a [SEP] b", 5),
    ],
)  # fmt: skip
def test_pieces_are_counted_in_texts_of_any_kind(text: str, count: int) -> None:
    assert count_pieces(text) == count
    assert Pieces(text).count(0, len(text)) == count


@given(LONG_TEXTS | UNBROKEN, st.data())
@settings(deadline=None, max_examples=60)
def test_pieces_of_a_span_are_those_of_its_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert Pieces(text).count(start, end) == count_pieces(text[start:end])
