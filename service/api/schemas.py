"""What clients send: strict, closed models. Values of the wrong type are never converted."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from service.api.problems import explain_model
from service.domain import RequestLoop, RequestRoute, RetrieverName
from service.errors import InvalidRequest
from service.runtime import MAX_STEPS, MAX_TOP_K

M = TypeVar("M", bound=BaseModel)

LONGEST_QUESTION: Final = 4_000
LONGEST_TIMEOUT_S: Final = 300

FilterScalar = str | int | Annotated[float, Field(allow_inf_nan=False)] | bool
FilterValues = FilterScalar | Annotated[list[FilterScalar], Field(min_length=1)]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("there is no question in it")
    return text


Question = Annotated[
    str, Field(min_length=1, max_length=LONGEST_QUESTION), AfterValidator(_not_blank)
]


class AnswerRequest(BaseModel):
    """A question and how to answer it; everything but `question` has a default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    question: Question
    route: RequestRoute = "auto"
    loop: RequestLoop = "default"
    retriever: RetrieverName = "hybrid"
    collection: str | None = Field(
        None, max_length=200, description="Absent: `default` where it exists, else `sample`."
    )
    filter: dict[str, FilterValues] | None = Field(
        None, description="Passage metadata: field → value, or a list of which one must match."
    )
    top_k: int | None = Field(
        None, ge=1, le=MAX_TOP_K, description="Passages shown to the reader per retrieval."
    )
    max_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    timeout_s: float | None = Field(None, gt=0, le=LONGEST_TIMEOUT_S, allow_inf_nan=False)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Runtime.prepare`."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class AnswerQuery(BaseModel):
    """The same as query parameters, for EventSource; `filter` is JSON text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Question
    route: RequestRoute = "auto"
    loop: RequestLoop = "default"
    retriever: RetrieverName = "hybrid"
    collection: str | None = Field(None, max_length=200)
    filter: str | None = Field(None, description="A JSON object: field → value or list.")
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    max_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    timeout_s: float | None = Field(None, gt=0, le=LONGEST_TIMEOUT_S, allow_inf_nan=False)

    def request(self) -> AnswerRequest:
        """Raises InvalidRequest when `filter` is no JSON object of values."""
        values = self.model_dump()
        if self.filter is not None:
            try:
                values["filter"] = orjson.loads(self.filter)
            except orjson.JSONDecodeError:
                raise InvalidRequest("filter: send a JSON object, as text") from None
        return parse_request(values)


def parse_request(body: object) -> AnswerRequest:
    """Raises InvalidRequest naming each wrong field; values are not repeated."""
    return parse(AnswerRequest, body)


def parse(model: type[M], body: object) -> M:
    """A decoded JSON body as `model`. Raises InvalidRequest."""
    if not isinstance(body, dict):
        raise InvalidRequest("send a JSON object")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidRequest(explain_model(error)) from None
