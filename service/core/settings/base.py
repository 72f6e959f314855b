"""Base classes of the settings' sections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from service.core.settings.urls import read_secret


def _split(value: Any) -> Any:
    """A variable gives a list as comma-separated text, a file by comma or line."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.replace("\n", ",").split(",")]


def _object(value: Any) -> Any:
    """A variable gives an object as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


JsonObject = BeforeValidator(_object)
CommaList = BeforeValidator(_split)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SectionWithSecrets(Section):
    """A section whose secrets can be read from files, as Kubernetes mounts them.

    The field `name_file` names a file that contains the secret `name`. Setting both is an error.
    """

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        read = dict(given)
        for field in cls.model_fields:
            path = given.get(field)
            secret = field.removesuffix("_file")
            if path is None or secret == field or secret not in cls.model_fields:
                continue
            if given.get(secret) is not None:
                raise ValueError(f"set either {secret} or {field}, not both")
            try:
                read[secret] = read_secret(Path(path))
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from None
        return read
