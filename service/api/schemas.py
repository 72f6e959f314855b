"""Request models: strict and closed. Values of the wrong type are never converted."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from service.api.problems import explain_model
from service.core.domain import RequestLoop, RequestRoute, RetrieverName
from service.core.errors import InvalidRequest
from service.runtime import MAX_STEPS, MAX_TOP_K

M = TypeVar("M", bound=BaseModel)

LONGEST_QUESTION: Final = 4_000
LONGEST_TIMEOUT_S: Final = 300

FilterScalar = str | int | Annotated[float, Field(allow_inf_nan=False)] | bool
FilterValues = FilterScalar | Annotated[list[FilterScalar], Field(min_length=1)]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("the question is blank")
    return text


Question = Annotated[
    str, Field(min_length=1, max_length=LONGEST_QUESTION), AfterValidator(_not_blank)
]


class AnswerRequest(BaseModel):
    """A question and how to answer it. Only `question` is required."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    question: Question
    route: RequestRoute = "auto"
    loop: RequestLoop = "default"
    retriever: RetrieverName = "hybrid"
    collection: str | None = Field(
        None,
        max_length=200,
        description="Collection to search. Default: `default` if it exists, else `sample`.",
    )
    filter: dict[str, FilterValues] | None = Field(
        None,
        description="Filter by passage metadata: a value per field, or a list of which one "
        "must match.",
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_TOP_K,
        description="Number of passages that the reader sees per retrieval.",
    )
    max_steps: int | None = Field(
        None, ge=1, le=MAX_STEPS, description="Maximum number of steps of the loop."
    )
    timeout_s: float | None = Field(
        None,
        gt=0,
        le=LONGEST_TIMEOUT_S,
        allow_inf_nan=False,
        description="Time limit in seconds. Default: `limits.timeout_s` of the settings.",
    )

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `Runtime.prepare`."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class AnswerQuery(BaseModel):
    """The same request as query parameters, for EventSource. `filter` is JSON text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Question
    route: RequestRoute = "auto"
    loop: RequestLoop = "default"
    retriever: RetrieverName = "hybrid"
    collection: str | None = Field(
        None,
        max_length=200,
        description="Collection to search. Default: `default` if it exists, else `sample`.",
    )
    filter: str | None = Field(
        None, description="JSON object with a value, or a list of values, per field."
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_TOP_K,
        description="Number of passages that the reader sees per retrieval.",
    )
    max_steps: int | None = Field(
        None, ge=1, le=MAX_STEPS, description="Maximum number of steps of the loop."
    )
    timeout_s: float | None = Field(
        None,
        gt=0,
        le=LONGEST_TIMEOUT_S,
        allow_inf_nan=False,
        description="Time limit in seconds. Default: `limits.timeout_s` of the settings.",
    )

    def request(self) -> AnswerRequest:
        """Return the request. Raises InvalidRequest if `filter` is not a JSON object of values."""
        values = self.model_dump()
        if self.filter is not None:
            try:
                values["filter"] = orjson.loads(self.filter)
            except orjson.JSONDecodeError:
                raise InvalidRequest("filter: not valid JSON; send a JSON object as text") from None
        return parse_request(values)


def parse_request(body: object) -> AnswerRequest:
    """Parse a request. Raises InvalidRequest, which names each wrong field but no values."""
    return parse(AnswerRequest, body)


def parse(model: type[M], body: object) -> M:
    """Validate a decoded JSON body. Raises InvalidRequest."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidRequest(explain_model(error)) from None
