"""What every section of the settings is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _split(value: Any) -> Any:
    """A variable gives a list as comma-separated text."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


CommaList = BeforeValidator(_split)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
