"""The journal of a run: a line for each finished item, with which an interrupted run is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from service.core.errors import ConfigurationError, StoreError
from service.core.files import LineFile, open_lines
from service.evaluation.rows import differences
from service.workshop.synthesis.contract import OutputRow
from service.workshop.synthesis.teacher import Spent

FORMAT: Final = 3


@dataclass(frozen=True)
class JournalEntry:
    """The result of one item: its rows, or the reason for having none.

    `key` identifies the item and its content. `again` means that the teacher was unavailable, so
    the next run tries the item again.
    """

    key: str
    rows: tuple[OutputRow, ...] = ()
    dropped: str | None = None
    lost: Mapping[str, int] = field(default_factory=dict)
    again: bool = False
    spent: Spent = field(default_factory=Spent)

    def to_line(self) -> bytes:
        line = json.dumps(self, default=vars, ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="backslashreplace")


ENTRY: Final = TypeAdapter(JournalEntry)


class Journal:
    """The entries of one run. `header` identifies the run, and `date` is the day of its first
    start."""

    def __init__(
        self, file: LineFile, header: Mapping[str, Any], records: list[JournalEntry]
    ) -> None:
        self._file = file
        self.header = header
        self.done = {record.key: record for record in records}  # the later of two entries
        self.spent = Spent()
        for record in records:
            self.spent.add(record.spent)

    def has(self, key: str) -> bool:
        """Whether an item is finished."""
        return key in self.done and not self.done[key].again

    def append(self, record: JournalEntry) -> None:
        self._file.append(record.to_line())
        self.done[record.key] = record
        self.spent.add(record.spent)


@contextmanager
def open_journal(path: Path, header: Mapping[str, Any]) -> Iterator[Journal]:
    """Open, repair and read the journal of a run, or create it.

    Raises ConfigurationError if it belongs to another run (all of `header` except `date` is
    compared), and StoreError if it cannot be used or another process uses it.
    """
    with open_lines(path) as file:
        first, records = _read(file.content, path)
        if first is None:
            first = {"format": FORMAT, **header}
            file.append(json.dumps(first, ensure_ascii=False).encode())
        if found := differences(first, {"format": FORMAT, **header, "date": first.get("date")}):
            raise ConfigurationError(
                f"{path} is of another run: {'; '.join(found)}; use the same value, choose another "
                "--output, or delete the file"
            )
        yield Journal(file, first, records)


def _read(content: bytes, path: Path) -> tuple[Mapping[str, Any] | None, list[JournalEntry]]:
    """Return the header and the entries."""
    try:
        values = [json.loads(line) for line in content.splitlines()]
        return values[0] if values else None, [ENTRY.validate_python(value) for value in values[1:]]
    except ValueError:
        raise StoreError(
            f"{path}: is not a journal of a synthesis; move it away, or choose another --output"
        ) from None
