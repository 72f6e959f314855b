"""The OpenAPI document: FastAPI's, with what dependencies read, problems, events and examples.

Requests are shown by an example. The bodies of OpenAI's formats are described in OpenAI's
documentation."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.answer.events import BaseEvent, Judgement, event_models
from service.api.wire import BODIES, EVENT_STREAM, stream_content
from service.core.domain import Problem

QUESTION: Final = "When was the writer of Billy Elliot born?"
# By the name of the schema.
EXAMPLES: Final[dict[str, Any]] = {
    "AnswerRequest": {"question": QUESTION, "collection": "sample", "top_k": 5},
    "SearchQuery": {"query": "Lee Hall, playwright", "collection": "sample", "top_k": 5},
    "CollectionRequest": {"description": "All manuals of the product", "metadata_fields": ["url"]},
    "DocumentBatch": {
        "documents": [
            {
                "id": "lee-hall",
                "title": "Lee Hall (playwright)",
                "text": "Lee Hall (born 20 September 1966) is an English playwright.",
                "url": "https://en.wikipedia.org/wiki/Lee_Hall_(playwright)",
            }
        ]
    },
    "ChatRequest": {
        "model": "revelator",
        "messages": [{"role": "user", "content": QUESTION}],
        "revelator": {"collection": "sample"},
    },
}
STREAM_EXAMPLE: Final = (
    'event: start\ndata: {"seq": 0, "ms": 0.0, "id": "4bd54b-390cd8262dff3e3f", "question": '
    f'"{QUESTION}"}}\nid: 4bd54b-390cd8262dff3e3f-0\n\n'
    'event: done\ndata: {"seq": 42, "ms": 2840.0}\nid: 4bd54b-390cd8262dff3e3f-42\n\n'
)


MODELS: Final = event_models()
REF: Final = "#/components/schemas/{model}"


def build_schema(app: FastAPI) -> dict[str, Any]:
    """Build FastAPI's schema and add bodies read by dependencies, problems and events. Cached."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            license_info=app.license_info,
            routes=app.routes,
        )
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(_models())
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for name, example in EXAMPLES.items():
            if name in schemas:
                schemas[name]["examples"] = [example]
        schema["components"]["schemas"] = dict(sorted(schemas.items()))
        schema["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        _complete(schema["paths"])
        for operation in schema["paths"]["/answer/stream"].values():
            _describe_stream(operation)
        app.openapi_schema = schema
    return app.openapi_schema


def _models() -> dict[str, Any]:
    """Return component schemas of the models that no route's signature names."""
    outputs: list[type[BaseModel]] = [Problem, *MODELS.values()]
    _, found = models_json_schema(
        [
            *((model, "validation") for model in BODIES),
            *((model, "serialization") for model in outputs),
        ],
        ref_template=REF,
    )
    schemas: dict[str, Any] = found["$defs"]
    for model in MODELS.values():
        _as_data(schemas[model.__name__], model)
    return schemas


def _as_data(schema: dict[str, Any], model: type[BaseEvent]) -> None:
    """Convert the model's schema to that of `data`: the tag is the SSE field `event`."""
    schema["properties"].pop("event")
    optional = set(schema["properties"]) if model is Judgement else set()
    optional |= {name for name, field in model.model_fields.items() if field.exclude_if}
    optional.add("step")
    schema["required"] = [
        name for name in schema["properties"] if name not in optional - {"seq", "ms"}
    ]


def _describe_stream(operation: dict[str, Any]) -> None:
    """Describe the stream as text, which OpenAPI 3.1 has no other word for, and name the schema of
    each event's `data`."""
    events = {name: {"$ref": REF.format(model=model.__name__)} for name, model in MODELS.items()}
    stream = stream_content(
        "Events `event: NAME`, `data: JSON` and `id: ANSWER-SEQ`. `x-events` has the schema of the "
        "JSON by name."
    )
    stream[EVENT_STREAM] |= {"example": STREAM_EXAMPLE, "x-events": events}
    operation["responses"]["200"] = {
        "description": "Events as they happen. Comments every 15 s keep the connection open.",
        "content": stream,
    }


def _complete(paths: dict[str, Any]) -> None:
    """Sort the responses, and require keys, if the deployment has some, for questions and
    collections but not for operation.
    """
    for operations in paths.values():
        for operation in operations.values():
            operation["responses"] = dict(sorted(operation["responses"].items()))
            if operation.get("tags") != ["operation"]:
                operation["security"] = [{}, {"bearer": []}, {"header": []}]
