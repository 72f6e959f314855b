"""Passages of a data folder, and the lines of its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from service.workshop.facts.splits import is_held_out


class Paragraph(NamedTuple):
    """One paragraph of Wikipedia, with its source."""

    id: str
    title: str
    text: str
    source: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.title)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
