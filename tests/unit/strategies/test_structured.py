"""Which schemas an answer can have."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.errors import InvalidRequest
from service.strategies.structured import LARGEST_SCHEMA, check_schema

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
PLACE = "response_format.json_schema.schema"


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


TOO_DEEP = ": a schema may be 64 levels deep, and one that refers to itself is deeper"


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (None, ": it must be a JSON object"),
        ([], ": it must be a JSON object"),
        ({"type": "banana"}, ".type: this is not a JSON Schema"),
        ({"properties": [1]}, ".properties: this is not a JSON Schema"),
        ({"type": "string", "pattern": "(("}, ".pattern: this is not a JSON Schema"),
        ({"$ref": "#"}, ": it refers to '#'"),
        ({"properties": {"a": {"$ref": "#"}}}, ": it refers to '#'"),
        ({"$dynamicRef": "#x"}, ": it refers to"),
        ({"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"}, TOO_DEEP),
        (
            {"properties": {"a": {"anyOf": [{"$ref": "#/properties/b"}, {"type": "null"}]},
                            "b": {"items": {"$ref": "#/properties/a"}}}},
            TOO_DEEP,
        ),
        ({"$ref": "#/$defs/gone"}, ": it refers to '#/$defs/gone'"),
        ({"$ref": "https://example.org/schema.json"}, ": it refers to 'https://example.org"),
        ({"$ref": "file:///etc/passwd"}, ": it refers to 'file:///etc/passwd'"),
        (nested(100), TOO_DEEP),
        ({"description": "x" * LARGEST_SCHEMA}, ": a schema may have 60,000 characters"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused_by_name(schema: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, PLACE)
    assert caught.value.detail.startswith(PLACE + told)


def test_a_part_may_be_referred_to_many_times() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for n in range(1, 15):  # 2**14 ways through it
        part = {"$ref": f"#/$defs/d{n - 1}"}
        definitions[f"d{n}"] = {"type": "object", "properties": {"a/b": part, "c": part}}
    schema = {"$defs": definitions, "$ref": "#/$defs/d14"}
    assert check_schema(schema, PLACE) is schema
