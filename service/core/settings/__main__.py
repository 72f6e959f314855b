"""`python -m service.core.settings > deploy/SETTINGS.md` writes the reference of all settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from service.core.settings import Settings

HEAD: Final = """# Settings

Made by `python -m service.core.settings > deploy/SETTINGS.md`; a test compares.

A setting `a.b` is the key `b` in the section `[a]` of `revelator.toml`, or the environment variable
`REVELATOR_A__B`. Every secret can also be read from the file that the setting of the same name with
`_file` at its end names. `NAME` is a name that you choose.
"""


def render() -> str:
    """Return the reference as Markdown: a table for each section."""
    tables: dict[str, list[str]] = {}
    for path, field in _fields(Settings, ""):
        section, _, name = path.rpartition(".")
        row = f"| `{name}` | {_default(field)} | {_description(field)} |"
        tables.setdefault(section, []).append(row)
    parts = [HEAD]
    for section, rows in tables.items():
        title = f"`[{section}]`" if section else "Outside of a section"
        lines = "\n".join(rows)
        parts.append(f"## {title}\n\n| Setting | Default | Meaning |\n|---|---|---|\n{lines}\n")
    return "\n".join(parts)


def _fields(model: type[BaseModel], above: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield each setting with its path, those of nested sections last."""
    sections: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        path = f"{above}.{name}" if above else name
        found = _section(field.annotation)
        if found is None:
            yield path, field
        else:
            section, named = found
            sections.append((f"{path}.NAME" if named else path, section))
    for path, section in sections:
        yield from _fields(section, path)


def _section(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    """Return the section in a field, and whether the field holds several of them by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part, getattr(annotation, "__origin__", None) is dict
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=False)
    if value is PydanticUndefined or value is None:
        return ""
    if isinstance(value, Path):  # depends on the machine
        return "the user's data folder"
    if isinstance(value, SecretStr):
        return ""
    shown = list(value) if isinstance(value, tuple | frozenset | set) else value
    return f"`{json.dumps(shown, ensure_ascii=False, default=str)}`"


def _description(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
