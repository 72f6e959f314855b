"""Names of settings that do not exist: those of earlier versions, and misspelt ones."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, get_args

from pydantic import BaseModel

# By dotted name; `*` stands for the name of an engine or a store. The changelog has the same table.
REMOVED: Final[dict[str, str]] = {
    "hanrag.on_no_evidence": "It was renamed to answers.no_evidence.",
    "server.max_wait_s": "A waiting question gets 503 after 30 s.",
    "server.max_body_bytes": "JSON bodies may have 1 MB; send more documents as NDJSON.",
}


def advice_on(settings: type[BaseModel], place: Sequence[int | str]) -> str:
    """Return what to do about a setting at `place` that `settings` does not have."""
    name = ".".join(map(str, place))
    for pattern, advice in REMOVED.items():
        if fnmatchcase(name, pattern):
            return f"this setting was removed. {advice}"
    names = _names_in(settings, place[:-1])
    close = get_close_matches(str(place[-1]), names, 1)
    meant = f"Did you mean {close[0]}?" if close else f"The settings here are {', '.join(names)}."
    return f"there is no such setting. {meant}"


def _names_in(settings: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """The settings of the section at `place`."""
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
