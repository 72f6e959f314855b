"""The OpenAPI document is good enough to generate clients from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from service.answer.events import event_models
from service.api.app import create_app
from service.api.openapi import EXAMPLES, STREAM_EXAMPLE
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
def test_every_operation_is_described_with_its_errors(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["tags"]
    assert operation["summary"]
    errors = {int(status): each for status, each in operation["responses"].items() if status >= "4"}
    assert errors
    for each in errors.values():
        assert list(named(each["content"])) in (["Problem"], ["OpenAIError"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_valid(name: str) -> None:
    validator = jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )
    validator.validate(EXAMPLES[name])


def test_the_example_of_a_stream_has_events() -> None:
    start, done = typed(parse_sse(STREAM_EXAMPLE))
    assert (start.seq, done.seq) == (0, 42)


# The words of OpenAPI 3.1.0 for what this document has, and those of JSON Schema 2020-12.
OBJECT_WORDS = {
    "operation": "tags summary description operationId parameters requestBody responses security",
    "parameter": "name in required description schema",
    "body": "required content",
    "response": "description content",
    "content": "schema example",
    "schema": "$ref type title description default examples example enum const format pattern "
    "minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum items minItems maxItems "
    "uniqueItems properties required additionalProperties propertyNames anyOf oneOf allOf not "
    "discriminator readOnly writeOnly deprecated contentMediaType contentSchema",
}


def objects() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The place, the kind and the value of each object of the document that has fixed words."""
    for name, operation in OPERATIONS.items():
        yield name, "operation", operation
        for parameter in operation.get("parameters", ()):
            yield name, "parameter", parameter
            yield from schemas(name, parameter["schema"])
        held = [("body", operation["requestBody"])] if "requestBody" in operation else []
        held += [("response", each) for each in operation["responses"].values()]
        for kind, each in held:
            yield name, kind, each
            for content in each.get("content", {}).values():
                yield name, "content", content
                yield from schemas(name, content["schema"])
    for name, schema in SCHEMAS.items():
        yield from schemas(name, schema)


def schemas(place: str, schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield place, "schema", schema
    for word in ("properties", "items", "additionalProperties", "propertyNames", "not"):
        below = schema.get(word)
        named = below if word == "properties" else {word: below}
        for name, each in (named or {}).items():
            if isinstance(each, dict):
                yield from schemas(f"{place}.{name}", each)
    for word in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(word, ()):
            if each != {"type": "null"}:  # one of several
                yield from schemas(f"{place}.{word}", each)


def test_the_document_has_only_what_generators_of_its_version_read() -> None:
    """Keywords of later versions, a schema that is only null, and an object as a default make
    generators fail, or write what does not compile."""
    assert DOCUMENT["openapi"] == "3.1.0"
    places = list(objects())
    assert len(places) > 500
    for place, kind, found in places:
        words = {word for word in found if not word.startswith("x-")}
        assert words <= set(OBJECT_WORDS[kind].split()), place
        assert found.get("type") != "null", place
        assert found.get("const", "") is not None, place
        assert found.get("enum") != [None], place
        assert not isinstance(found.get("default"), dict), place


def test_the_events_of_a_stream_have_their_schemas() -> None:
    for method in ("POST", "GET"):
        stream = OPERATIONS[f"{method} /answer/stream"]["responses"]["200"]["content"]
        events = stream["text/event-stream"]["x-events"]
        assert set(events) == set(event_models())
        for name, reference in events.items():
            assert SCHEMAS[reference["$ref"].rpartition("/")[2]]["properties"]["seq"], name
