"""Advice on names of settings that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel


def advice_on(settings: type[BaseModel], place: Sequence[int | str]) -> str:
    """Return what to do about a setting at `place` that `settings` does not have."""
    names = _names_in(settings, place[:-1])
    close = get_close_matches(str(place[-1]), names, 1)
    meant = f"Did you mean {close[0]}?" if close else f"The settings here are {', '.join(names)}."
    return f"there is no such setting. {meant}"


def _names_in(settings: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Return the settings of the section at `place`."""
    section: Any = settings
    for part in place:
        if issubclass(section, BaseModel) and part in section.model_fields:
            kinds = _models(section.model_fields[str(part)].annotation)
            section = kinds[0] if kinds else section
    return sorted(section.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The section classes in an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
