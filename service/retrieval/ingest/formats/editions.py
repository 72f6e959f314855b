"""Which edition of a document a file is: `date`, `version` and `valid_from`, from what its name
says, its metadata, or the lines between `---` at the beginning of Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FIELDS: Final = ("date", "version", "valid_from")
LONGEST: Final = 100  # characters of a value
_DATE: Final = re.compile(
    r"(?<!\d)((?:19|20)\d\d)(?:[-_.]?(0[1-9]|1[0-2])(?:[-_.]?(0[1-9]|[12]\d|3[01]))?)?(?!\d)"
)
_VERSION: Final = re.compile(r"(?:^|[-_ .(])v(?:er(?:sion)?)?[-_ .]?(\d+(?:\.\d+)*)(?![\w])", re.I)
_FRONT: Final = re.compile(r"\s*---[^\S\n]*\n((?:[\w-]++:[^\n]*\n)++)---[^\S\n]*(?:\n|$)")


def edition(label: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the fields of the document `label`, of which `given` has some."""
    given = given or {}
    found = {name: given[name][:LONGEST] for name in FIELDS if given.get(name)}
    stem = Path(label).stem
    if not {"date", "valid_from"} & found.keys() and (date := _DATE.search(stem)):
        found["date"] = "-".join(part for part in date.groups() if part)
    if "version" not in found and (version := _VERSION.search(stem)):
        found["version"] = version[1]
    return found


def front_matter(text: str) -> tuple[dict[str, str], str]:
    """Return the fields between `---` before a text, and the text without them."""
    if not (block := _FRONT.match(text)):
        return {}, text
    lines = (line.partition(":") for line in block[1].splitlines())
    return {name: value.strip().strip("\"'") for name, _, value in lines}, text[block.end() :]
