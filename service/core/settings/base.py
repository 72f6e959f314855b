"""Base classes of the settings' sections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from service.core.settings.urls import checked, origin_of, read_secret


def _split(value: Any) -> Any:
    """Read a variable's list: JSON, or separated by commas, in a file by commas or lines."""
    if isinstance(value, str):
        if value.lstrip().startswith(("[", "{", '"')):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ValueError(f'not a JSON list: {error}; write ["a", "b"] or a,b') from None
        else:
            lines = [line for line in value.split("\n") if line.strip()]
            value = [part.strip() for line in lines for part in line.split(",")]
    if isinstance(value, list) and "" in value:
        raise ValueError("an entry of this list is empty; remove it, or the comma beside it")
    return value


def _object(value: Any) -> Any:
    """Parse a variable's JSON object."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


JsonObject = BeforeValidator(_object)
CommaList = BeforeValidator(_split)
Rate = Annotated[int, Field(ge=1, le=1_000_000)]  # of a minute
Origin = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://[^/?#@*\s]+/?$"), AfterValidator(origin_of)
]
# Variables may be set but empty.
ServerUrl = Annotated[str | None, AfterValidator(lambda url: checked(url) if url else None)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SectionWithSecrets(Section):
    """A section whose secrets can be read from files, as Kubernetes mounts them.

    For every secret `name`, the section also accepts `name_file`, the path of a file that contains
    the secret. Setting both is an error.
    """

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        read = dict(given)
        for name, field in cls.model_fields.items():
            is_secret = SecretStr in (field.annotation, *get_args(field.annotation))
            path = read.pop(f"{name}_file", None) if is_secret else None
            if path is None:
                continue
            if read.get(name) is not None:
                raise ValueError(f"set either {name} or {name}_file, not both")
            try:
                read[name] = read_secret(Path(path))
            except ValueError as error:
                raise ValueError(f"{name}_file: {error}") from None
        return read
