"""What comes over the wire as the models of OpenAI's own package, which are stricter than its
client: that builds them without validation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.model import Model
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def data_of(stream: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON of a stream's events."""
    for line in stream.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def chat(body: dict[str, Any]) -> ChatCompletion:
    return ChatCompletion.model_validate(body)


def chunks(stream: str) -> list[ChatCompletionChunk]:
    assert stream.endswith("data: [DONE]\n\n")
    return [ChatCompletionChunk.model_validate(each) for each in data_of(stream)]


def response(body: dict[str, Any]) -> Response:
    return Response.model_validate(body)


def events(stream: str) -> list[Any]:
    return [EVENT.validate_python(each) for each in data_of(stream)]


def error(body: dict[str, Any]) -> ErrorObject:
    return ErrorObject.model_validate(body["error"])


def models(body: dict[str, Any]) -> list[Model]:
    return [Model.model_validate(each) for each in body["data"]]
