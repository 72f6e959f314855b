"""The folder of an evaluation, in which an interrupted evaluation can be continued.

`DIR/rows.jsonl` has one JSON object per line, in the order of completion. A row is the result of
one method for one question of one dataset. Its key is (`dataset`, `method`, `id`). If a key occurs
twice, because the question was asked again after a failure, the later row replaces the earlier one.

| Field | Meaning |
|---|---|
| `dataset`, `method`, `id` | the key; `id` is the dataset's own, or the line or element from 1 |
| `question`, `gold` | the question; its gold answers (empty where abstaining is right) |
| `gold_route` | the route that the dataset gives, or null |
| `parts`, `parts_found` | number of parts of a compound gold answer, and of those that were found |
| `prediction`, `answered` | the answer's text; false if it abstained; null and false if it failed |
| `scores` | value per evaluator from 0 to 1; null where it does not apply |
| `route`, `loop`, `stopped_by` | as in the answer's body |
| `chosen_route`, `chosen_by`, `confidence` | the first `route` event: before any escalation |
| `steps`, `retrievals`, `llm_calls`, `prompt_tokens`, `completion_tokens` | as in `usage` |
| `generations`, `sentences`, `hallucinated` | counts of loops that draft; null for others |
| `retrieved`, `pool` | number of different passages found, and of those kept (EfficientRAG's K) |
| `ms`, `queue_ms` | time of the answer as the service measured it, and of it in the queue |
| `wall_ms` | time from the request to the last event as the evaluation measured it |
| `last_resort` | whether the answer is that of a last search, not of the method |
| `degraded` | the retrieval sides that were unavailable |
| `answer_id` | the id of the answer, as in logs; null if the question never started |
| `judge_error` | why `--judge` gave no verdict, or null; its score is `scores.judge` |
| `error` | null, or `TYPE: DETAIL` of the failure |

A failed question has the costs until its failure, and its `scores` count it as wrong. Its `steps`,
`stopped_by`, `ms` and `queue_ms` are null.

`DIR/run.json` has what all rows have in common. It is written once, before the first row, and again
if datasets or methods are added, or another commit or machine continues:

| Field | Meaning |
|---|---|
| `version` | of this layout |
| `common` | version of the service and its settings, or the server; request, evaluators, judge and note |
| `datasets` | by name: `file`, `sha256`, `format`, `questions` (number in the file), `scoring`, `collection` (its description), `request` (of a bundle) |
| `methods` | by name: `route`, `loop` and `last_resort` |
| `processes` | `commit` and `machine` of every process that asked, each once |
"""  # noqa: E501 (a table)

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import service
from service.core.domain import LoopName, RouteName, StoppedBy
from service.core.errors import ConfigurationError, EngineFailure, RetrievalFailure, StoreError
from service.core.files import LineFile, open_lines, save_whole
from service.core.terminal import cut

ROWS: Final = "rows.jsonl"
RUN: Final = "run.json"
VERSION: Final = 1
_GIT: Final = ("git", "-C", str(Path(service.__file__).parent))
_MOST_SHOWN: Final = 100  # most characters of a value in a message
_TUPLES: Final = ("gold", "degraded")


class Key(NamedTuple):
    """The key of a row."""

    dataset: str
    method: str
    id: str


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one question by one method; the module's table describes the fields."""

    id: str
    question: str
    gold: tuple[str, ...]
    gold_route: RouteName | None
    prediction: str | None
    answered: bool
    scores: dict[str, float | None]
    parts: int
    parts_found: int
    dataset: str = ""
    method: str = ""
    route: RouteName | None = None
    loop: LoopName | None = None
    chosen_route: RouteName | None = None
    chosen_by: str | None = None
    confidence: float | None = None
    stopped_by: StoppedBy | None = None
    steps: int | None = None
    retrievals: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generations: int | None = None
    sentences: int | None = None
    hallucinated: int | None = None
    retrieved: int = 0
    pool: int = 0
    ms: float | None = None
    queue_ms: float | None = None
    wall_ms: float | None = None
    last_resort: bool = False
    degraded: tuple[str, ...] = ()
    answer_id: str | None = None
    judge_error: str | None = None
    error: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.dataset, self.method, self.id)

    @property
    def interrupted(self) -> bool:
        """Whether the question failed because an engine, a store or the server was unavailable."""
        return self.error is not None and self.error.startswith(_OUT)

    def as_line(self) -> bytes:
        """Return the row as one line of JSON. Half a surrogate pair is written as an escape."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        line = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="backslashreplace")


_FIELDS: Final = tuple(field.name for field in fields(Row))
_OUT: Final = tuple(
    f"urn:revelator:problem:{slug}"
    for slug in (
        EngineFailure.slug, "engine-timeout", RetrievalFailure.slug, "overloaded", "draining",
    )
)  # fmt: skip


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of an evaluation's folder, the latest of each key.

    A last line without a line end, which an interrupted evaluation can leave, is ignored. Raises
    StoreError, with file and line, if the file cannot be read or a line is not a row.
    """
    path = folder / ROWS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    return latest(parse_rows(content[: content.rfind(b"\n") + 1], path))


def parse_rows(content: bytes, path: Path) -> list[Row]:
    """Return the rows of complete lines. Raises StoreError if a line is not a row."""
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            value = json.loads(line)
            tuples = {name: tuple(value[name]) for name in _TUPLES if name in value}
            rows.append(Row(**{**value, **tuples}))
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{path}:{number}: is not a row of this version ({error}); its fields are "
                f"{', '.join(_FIELDS)}. "
                "Move the folder away, or name another one"
            ) from None
    return rows


def latest(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each key."""
    return list({row.key: row for row in rows}.values())


class RunFolder:
    """The open folder of an evaluation. `rows` are those present when it was opened, the latest of
    each key, and `run` is the content of `run.json`."""

    def __init__(
        self, file: LineFile, folder: Path, rows: list[Row], run: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.rows = rows
        self._file = file
        self._folder = folder
        self.run = self._joined(run)

    def _joined(self, run: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Write `run.json`, including the datasets and methods of earlier commands."""
        folder, stored = self._folder, read_run(self._folder)
        # In the types that reading the file gives, with lists instead of tuples.
        new = json.loads(json.dumps({"version": VERSION, **run}))
        if stored is None and self.rows:
            raise ConfigurationError(
                f"{folder} has rows, but no {RUN} that describes them; choose another folder"
            )
        if stored is not None:
            if found := conflicts(stored, new):
                raise ConfigurationError(
                    f"{folder} holds rows of another evaluation: {'; '.join(found[:5])}. Use the "
                    "same settings, or choose another folder"
                )
            for name in ("datasets", "methods"):
                new[name] = stored[name] | new[name]
        new["processes"] = (stored or {}).get("processes", [])
        if new != stored:
            self._write(new)
        return dict(new)

    def _write(self, run: Mapping[str, Any]) -> None:
        save_whole(self._folder / RUN, json.dumps(run, ensure_ascii=False, indent=1) + "\n")

    def note(self, process: Mapping[str, Any]) -> None:
        """Record a process that is going to ask, unless it is known. Raises StoreError."""
        if process not in self.run["processes"]:
            self.run["processes"].append(dict(process))
            self._write(self.run)

    def append(self, row: Row) -> None:
        """Append a row. Raises StoreError if that fails; the earlier rows are preserved."""
        self._file.append(row.as_line())


@contextmanager
def open_run(folder: Path, run: Mapping[str, Mapping[str, Any]]) -> Iterator[RunFolder]:
    """Start or continue an evaluation in `folder`. `run` has `common`, `datasets` and `methods`.

    Raises ConfigurationError, with the differences, if the folder contains another evaluation.
    Raises StoreError if the folder cannot be used or another process is writing to it.
    """
    path = folder / ROWS
    with open_lines(path) as file:
        yield RunFolder(file, folder, latest(parse_rows(file.content, path)), run)


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


def conflicts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the rows of `new` must not be added to the stored run.

    Adding datasets or methods and moving a file are no conflicts.
    """
    found = differences(old["common"], new["common"])
    for name in sorted(old["datasets"].keys() & new["datasets"].keys()):
        before, now = ({**run["datasets"][name], "file": ""} for run in (old, new))
        found += differences(before, now, f"dataset {name}")
    for name in sorted(old["methods"].keys() & new["methods"].keys()):
        found += differences(old["methods"][name], new["methods"][name], f"method {name}")
    return found


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
    was, now = (cut(json.dumps(value, ensure_ascii=False), _MOST_SHOWN) for value in (old, new))
    return [f"{name} was {was} and is {now}"]


def process() -> dict[str, str | None]:
    """Return commit and machine of this process for `run.json`. Blocking."""
    return {"commit": commit(), "machine": machine()}


def commit() -> str | None:
    """Return the commit of the code, with `+` if files have changed since. Blocking.

    Returns None if the service was not installed from a working tree.
    """
    try:
        tracked = _git("ls-files", "--error-unmatch", "__init__.py")
        return tracked and _git("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run([*_GIT, *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def machine() -> str:
    """Return the machine's type and Python version, without host names."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    return f"{system}, {cores} cores, Python {platform.python_version()}"
