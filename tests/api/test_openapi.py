"""The OpenAPI document is good enough to generate clients from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from service.api.app import create_app
from service.api.examples import EXAMPLES, STREAM_EXAMPLE
from service.core.settings import Settings
from tests.support.live import parse_sse, typed

DOCUMENT: dict[str, Any] = create_app(Settings()).openapi()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


def named(contents: dict[str, Any]) -> Iterator[str]:
    """The component schemas of JSON contents."""
    for kind, content in contents.items():
        reference = content.get("schema", {}).get("$ref", "")
        if kind in {"application/json", "application/problem+json"} and reference:
            yield reference.rpartition("/")[2]


def test_every_operation_has_an_id_of_its_own() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)
    assert all(each.isidentifier() for each in ids)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_described_with_its_errors_and_examples(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["tags"]
    assert operation["summary"]
    errors = {int(status): each for status, each in operation["responses"].items() if status >= "4"}
    assert errors
    for each in errors.values():
        assert list(named(each["content"])) in (["Problem"], ["OpenAIError"])
    bodies = [operation.get("requestBody", {}).get("content", {})]
    bodies += [each.get("content", {}) for each in operation["responses"].values()]
    for body in bodies:
        for schema in named(body):
            assert SCHEMAS[schema].get("examples"), f"add {schema} to service/api/examples.py"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_valid_and_whole(name: str) -> None:
    validator = jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )
    validator.validate(EXAMPLES[name])
    if name not in {
        "AnswerRequest",
        "ChatRequest",
        "CollectionRequest",
        "ResponsesRequest",
    }:
        assert set(EXAMPLES[name]) == set(SCHEMAS[name]["properties"])


def test_the_example_of_a_stream_has_events() -> None:
    start, done = typed(parse_sse(STREAM_EXAMPLE))
    assert (start.seq, done.seq) == (0, 42)
