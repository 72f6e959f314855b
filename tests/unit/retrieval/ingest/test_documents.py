from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.retrieval.documents import (
    MOST_CHARACTERS,
    MOST_LEVELS,
    MOST_PIECES,
    BadDocument,
    Document,
    cut,
    fields_of,
    filter_tokens,
    metadata_tokens,
    parse_document,
    passages_of,
)
from service.text import sentences
from service.text.wordpiece import Pieces, count_pieces


def test_other_fields_are_metadata() -> None:
    document = parse_document({"id": 7, "title": None, "text": "t", "a": 1, "b": [2]})
    assert (document.id, document.title, document.metadata) == ("7", "", {"a": 1, "b": [2]})


def test_without_an_id_it_is_a_hash_of_title_and_text() -> None:
    one = parse_document({"title": "a", "text": "b", "kind": "x"})
    same = parse_document({"title": "a", "text": "b"})
    other = parse_document({"title": "ab", "text": """ b"""})
    assert one.id == same.id != other.id
    assert one.content_hash != same.content_hash


def test_the_order_of_fields_does_not_change_the_hash() -> None:
    one = parse_document({"id": "x", "text": "t", "a": 1, "b": 2})
    assert one.content_hash == parse_document({"b": 2, "a": 1, "text": "t", "id": "x"}).content_hash


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "a document must be a JSON object, not a list"),
        ({}, "text must be a string, but is missing"),
        ({"text": " \n"}, "text is empty"),
        ({"text": 3}, "text must be a string, but is a number"),
        ({"text": "t", "title": True}, "title must be a string, but is a boolean"),
        ({"text": "t", "title": "x" * 1001}, "title is longer"),
        ({"text": "t", "id": ""}, "id is empty"),
        ({"text": "t", "id": ".."}, "no URL can name"),
        ({"text": "t", "id": 1.5}, "id must be a string or an integer"),
        ({"text": "t", "id": True}, "id must be"),
        ({"text": "t", "id": "x" * 513}, "id is longer"),
        ({"text": "t", "id": "x#12"}, "must not end in # and a number"),
        ({"text": "t", "id": "x\n"}, "id must not contain line breaks"),
        ({"text": "t", "id": "x\ry"}, "or other control characters"),
        ({"text": "t", "id": "x\x00y"}, "or other control characters"),
        ({"text": "t", "id": "x\x85y"}, "or other control characters"),
        ({"text": "t", "id": "x\u2028y"}, "or other control characters"),
        ({"text": "\ud800"}, "text is not valid Unicode"),
        ({"text": "t", "": 1}, "a field has an empty name"),
        ({"text": "t", "n": 2**70}, "not plain JSON"),
        ({"text": "t", **{f"f{n}": n for n in range(65)}}, "more than 64 fields"),
    ],
)
def test_bad_documents_say_what_is_wrong(value: Any, problem: str) -> None:
    with pytest.raises(BadDocument, match=problem):
        parse_document(value)


def nested(levels: int, listed: bool) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if listed else {"a": value}
    return value


@pytest.mark.parametrize("listed", [True, False])
def test_metadata_is_nested_only_as_deeply_as_all_stores_can_hold(listed: bool) -> None:
    document = parse_document({"id": "x", "text": "t", "m": nested(MOST_LEVELS, listed), "n": [[]]})
    assert document.content_hash
    assert orjson.dumps(fields_of(passages_of(document)[0]))
    for levels in (MOST_LEVELS + 1, 252, 253, 254, 900):
        with pytest.raises(BadDocument, match="the field 'm' has objects or lists nested more"):
            parse_document({"id": "x", "text": "t", "n": 1, "m": nested(levels, listed)})


def test_filter_tokens_compare_as_json_does() -> None:
    metadata = {"a": 1.0, "b": True, "c": ["x", 2, None], "d": {"e": 1}, "f": None}
    assert metadata_tokens(metadata) == [
        "a=1", "b=true", 'c="x"', "c=2",
    ]  # fmt: skip
    assert filter_tokens({"a": (1,), "b": (1,), "c": (True, "x")}) == [
        ["a=1"], ["b=1"], ["c=true", 'c="x"'],
    ]  # fmt: skip
    long = "é" * 5000
    assert metadata_tokens({"a": long}) == filter_tokens({"a": (long,)})[0]
    assert len(metadata_tokens({"a": long})[0]) < 100


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
