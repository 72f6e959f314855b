"""A request's fields: what is accepted, and what they mean once they are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.request import PreparedRequest, parse_request
from service.core.errors import InvalidRequest


def test_a_filter_is_a_choice_of_values_per_field() -> None:
    asked = parse_request({"question": "Q?", "filter": {"year": 1831, "act": ["1", True, 2.5]}})
    assert asked.filter == {"year": (1831,), "act": ("1", True, 2.5)}
    prepared = PreparedRequest(**dict(asked) | {"collection": "mine", "timeout_s": 5})
    assert (prepared.filter, prepared.collection) == (asked.filter, "mine")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("filter", {"year": []}, "filter.year: Value error, the list is empty"),
        ("filter", {"year": float("inf")}, "filter.year.0.float: Input should be a finite number"),
        ("question", " ", "question: Value error, the question is blank"),
        ("top_k", "3", "top_k: Input should be a valid integer"),
        ("colour", "red", "colour: Extra inputs are not permitted"),
    ],
)
def test_an_error_names_the_field(field: str, value: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request({"question": "Q?", field: value})
    assert told in caught.value.detail
