from __future__ import annotations

from typing import Any

import orjson
import pytest

from service.retrieval.documents import MOST_LEVELS, BadDocument, parse_document, passages_of
from service.retrieval.stores.records import fields_of, filter_tokens, metadata_tokens


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
        ({}, "text must be a string, not missing"),
        ({"text": " \n"}, "text is empty"),
        ({"text": 3}, "text must be a string, not a number"),
        ({"text": "t", "title": True}, "title must be a string, not a boolean"),
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


def test_ids_may_have_every_other_character() -> None:
    for given in ("a b", "日本.pdf#page=1", "x#²", "👩‍🚀", "a\u00a0b", "é" * 256):
        assert parse_document({"id": given, "text": "t"}).id == given


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
