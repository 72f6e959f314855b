"""Validates decoded JSON against models, with errors that name the fields but not their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from service.core.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)

SHOWN_ERRORS: Final = 5


class Strict(BaseModel):
    """What others write: unknown fields are errors, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def parse(model: type[M], body: object) -> M:
    """Validate a decoded JSON body. Raises InvalidRequest, which names each wrong field."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidRequest(explain(found)) from None


def explain(errors: Sequence[Any]) -> str:
    """Return Pydantic's errors as one sentence, without the values sent by the client."""
    lines = [f"{_place(error['loc'])}{message_of(error)}" for error in errors[:SHOWN_ERRORS]]
    if len(errors) > SHOWN_ERRORS:
        lines.append(f"and {len(errors) - SHOWN_ERRORS} more")
    return "; ".join(lines)


def message_of(error: Any) -> str:
    """Return what one of Pydantic's errors says, in our words where its own are a program's."""
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    return str(error["msg"]).removeprefix("Value error, ")


def _place(location: tuple[int | str, ...]) -> str:
    if len(location) > 1 and location[0] in ("body", "query", "path"):
        location = location[1:]
    parts = [str(part)[:80] for part in location]
    return f"{'.'.join(parts)}: " if parts else ""
