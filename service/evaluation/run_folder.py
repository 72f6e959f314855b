"""The folder of an evaluation, in which an interrupted evaluation can be continued.

`run.json` is written once, before the first row, and again if datasets or methods are added, or
another commit or machine continues:

| Field | Meaning |
|---|---|
| `version` | of this layout |
| `digest` | SHA-256 of `common` |
| `common` | what all rows have in common: version of the service and its settings, or the server; request, evaluators, judge and note |
| `datasets` | by name: `file`, `sha256`, `format`, `questions` (number in the file), `scoring`, `collection` (its description) |
| `methods` | by name: `route` and `loop` |
| `processes` | `commit` and `machine` of every process that asked, each once |

`rows.jsonl` is described in `rows.py`.
"""  # noqa: E501 (a table)

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.core.errors import ConfigurationError, StoreError
from service.core.files import line_file, whole_lines, write_whole
from service.evaluation.rows import ROWS, Row, latest, parse_rows

RUN: Final = "run.json"
VERSION: Final = 1
_MOST_SHOWN: Final = 100  # most characters of a value in a message


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """The description of an evaluation, as in `run.json`."""

    common: Mapping[str, Any]
    datasets: Mapping[str, Mapping[str, Any]]
    methods: Mapping[str, Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file in the types that reading it gives, with lists instead of
        tuples."""
        plain: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "version": VERSION,
                    "digest": digest_of(self.common),
                    "common": self.common,
                    "datasets": self.datasets,
                    "methods": self.methods,
                }
            )
        )
        return plain


def digest_of(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def differences(old: object, new: object, name: str = "") -> list[str]:
    """Return a line for each differing value, with its dotted name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            line
            for key in sorted(old.keys() | new.keys())
            for line in differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
        ]
    if old == new:
        return []
    return [f"{name} was {_shown(old)} and is {_shown(new)}"]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def conflicts(old: Mapping[str, Any], new: EvaluationRun) -> list[str]:
    """Return the reasons why the rows of `new` must not be added to the stored run.

    Adding datasets or methods and moving a file are no conflicts.
    """
    own = new.as_json()
    found = differences(old["common"], own["common"])
    for name in sorted(old["datasets"].keys() & own["datasets"].keys()):
        before, now = ({**side[name]} for side in (old["datasets"], own["datasets"]))
        for side in (before, now):
            del side["file"]
        found += differences(before, now, f"dataset {name}")
    for name in sorted(old["methods"].keys() & own["methods"].keys()):
        found += differences(old["methods"][name], own["methods"][name], f"method {name}")
    return found


class RunFolder:
    """An open evaluation folder. `rows` are those present when it was opened, the latest of each
    key."""

    def __init__(self, handle: int, path: Path, rows: list[Row]) -> None:
        self.rows = rows
        self._handle = handle
        self._path = path

    def note(self, process: Mapping[str, Any]) -> None:
        """Record a process that is going to ask, unless it is known. Raises StoreError."""
        value = read_run(self._path.parent)
        assert value is not None  # written by `open_run`
        if process not in value["processes"]:
            value["processes"].append(dict(process))
            _write(self._path.parent, value)

    def append(self, row: Row) -> None:
        """Append a row with a single write.

        Raises StoreError if that fails; the earlier rows are preserved.
        """
        line = row.as_line()
        try:
            written = os.write(self._handle, line)
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror}") from None
        if written < len(line):
            raise StoreError(f"{self._path}: the disk is full; free space and run it again")


@contextmanager
def open_run(folder: Path, run: EvaluationRun) -> Iterator[RunFolder]:
    """Start or continue an evaluation in `folder`.

    Raises ConfigurationError, with the differences, if the folder contains another evaluation.
    Raises StoreError if the folder cannot be used or another process is writing to it.
    """
    path = folder / ROWS
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written: {error.strerror}") from None
    with line_file(path) as handle:
        lines = whole_lines(handle)
        rows = parse_rows(lines, path)
        os.ftruncate(handle, len(lines))
        _join(folder, run, any_rows=bool(rows))
        yield RunFolder(handle, path, latest(rows))


def _join(folder: Path, run: EvaluationRun, *, any_rows: bool) -> None:
    """Write `run.json`, including the datasets and methods of earlier commands."""
    stored = read_run(folder)
    if stored is None and any_rows:
        raise ConfigurationError(
            f"{folder} has rows, but no {RUN} that describes them; choose another folder"
        )
    if stored is not None:
        if found := conflicts(stored, run):
            raise ConfigurationError(
                f"{folder} holds rows of another evaluation: {'; '.join(found[:5])}. Use the "
                "same settings, or choose another folder"
            )
        run = EvaluationRun(
            run.common,
            {**stored["datasets"], **run.datasets},
            {**stored["methods"], **run.methods},
        )
    value = run.as_json() | {"processes": (stored or {}).get("processes", [])}
    if value != stored:
        _write(folder, value)


def _write(folder: Path, value: Mapping[str, Any]) -> None:
    try:
        write_whole(folder / RUN, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise StoreError(f"{folder / RUN}: cannot be written: {error.strerror}") from None


def read_run(folder: Path) -> dict[str, Any] | None:
    """Return the content of `run.json`, or None if it does not exist. Raises StoreError if it is
    invalid."""
    path = folder / RUN
    try:
        value = json.loads(path.read_bytes())
        if value["version"] != VERSION or not {"common", "datasets", "methods"} <= value.keys():
            raise ValueError(f"version {value['version']}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path}: was not written by this version ({error}); choose another folder"
        ) from None
    return dict(value)
