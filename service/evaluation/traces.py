"""Traces: the unchanged events of one question, one JSON object per line.

A trace is the file `DIR/DATASET/METHOD/ID.jsonl`, with the names quoted as in URLs. Its first line
describes the question:

| Field | Meaning |
|---|---|
| `trace` | version of this layout |
| `version` | of the service that answered |
| `dataset`, `method`, `id` | the key of the row |
| `request` | the fields of the request |
| `gold` | the question with its gold answers and passages, as in the dataset; null for a question of `revelator ask`, which has none |

Each later line is an event as `POST /answer/stream` sends it, with its name in `event`; the last
is `done`. A trace thus contains all parts of the body, and `read_trace` assembles it again.
"""  # noqa: E501 (a table)

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import anyio.to_thread
from pydantic import BaseModel, TypeAdapter, ValidationError

from service import __version__
from service.answer.events import AnswerReady, BaseEvent, Done, Event, Failed, Start
from service.answer.fold import Fold
from service.core.domain import Answer, Problem
from service.core.errors import StoreError
from service.core.files import save_whole
from service.core.validation import explain
from service.evaluation.datasets import GoldQuestion
from service.evaluation.rows import Key

SUFFIX: Final = ".jsonl"
_LONGEST_NAME: Final = 120  # in characters; most file systems allow 255 bytes
_EVENT: Final[TypeAdapter[BaseEvent]] = TypeAdapter(Event)


class Header(BaseModel):
    """The first line of a trace."""

    trace: Literal[2] = 2
    version: str = __version__
    dataset: str
    method: str
    id: str
    request: dict[str, Any]
    gold: GoldQuestion | None = None

    @property
    def key(self) -> Key:
        return Key(self.dataset, self.method, self.id)


@dataclass(frozen=True, slots=True)
class Trace:
    """A question with all its events. `result` is the answer's body, or the problem that ended the
    question."""

    header: Header
    events: tuple[BaseEvent, ...]
    result: Answer | Problem

    @property
    def question(self) -> str:
        return str(self.header.request.get("question", ""))

    @property
    def answer_id(self) -> str | None:
        """The id of the answer, or None if the question never started."""
        return next((event.id for event in self.events if isinstance(event, Start)), None)


def trace_path(folder: Path, key: Key) -> Path:
    """Return the path of a row's trace."""
    dataset, method, name = map(_file_name, key)
    return folder / dataset / method / f"{name}{SUFFIX}"


def _file_name(name: str) -> str:
    """Return the name with unsafe characters as `%XX`; a long name is cut and given a digest."""
    quoted = quote(name, safe=" ", errors="backslashreplace").replace(" ", "_").lstrip(".")
    if quoted == name and len(quoted) <= _LONGEST_NAME:
        return quoted
    digest = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{quoted[:_LONGEST_NAME]}-{digest}"


class Recorder:
    """Collects the events of one question, and writes them when it has ended."""

    def __init__(
        self, path: Path, key: Key, request: Mapping[str, Any], gold: GoldQuestion | None = None
    ) -> None:
        self._path = path
        header = Header(**key._asdict(), request=dict(request), gold=gold)
        self._lines = [header.model_dump_json()]
        self._whole = False

    def see(self, event: BaseEvent) -> None:
        self._lines.append(event.model_dump_json())
        self._whole = isinstance(event, Done)

    async def keep(self) -> None:
        """Write the trace if the question has ended. Raises StoreError if writing fails."""
        if self._whole:
            content = "\n".join(self._lines) + "\n"
            await anyio.to_thread.run_sync(save_whole, self._path, content)


def recorder_of_question(path: Path, fields: Mapping[str, Any]) -> Recorder:
    """Return a recorder that writes a question without gold answers to a file."""
    key = Key("question", str(fields.get("loop", "default")), path.stem)
    return Recorder(path, key, fields)


def read_trace(path: Path) -> Trace:
    """Read a trace and assemble the body from its events.

    Raises StoreError, with file and line, if the file cannot be read, is truncated, has another
    layout version, or if its events do not match the body that it contains.
    """
    lines = _lines(path)
    try:
        header = Header.model_validate_json(lines[0])
    except ValidationError as error:
        raise StoreError(
            f"{path}:1: is not the first line of a trace of this version "
            f"({explain(error.errors())}); evaluate again, or use the version that wrote it"
        ) from None
    events = tuple(_event(line, f"{path}:{n}") for n, line in enumerate(lines[1:], 2))
    if not events or not isinstance(events[-1], Done):
        raise StoreError(f"{path}:{len(lines)}: is truncated: its last event is not `done`")
    return Trace(header, events, _result(events, path))


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes().decode()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: is not a trace: not UTF-8 at byte {error.start}") from None
    lines = content.split("\n")
    if not content:
        raise StoreError(f"{path}: is empty")
    if lines.pop():
        raise StoreError(f"{path}:{len(lines) + 1}: is truncated: the line has no end")
    return lines


def _event(line: str, place: str) -> BaseEvent:
    try:
        event = _EVENT.validate_json(line)
        if event.model_dump_json() == line:
            return event
        why = "its fields differ"
    except ValidationError as error:
        why = explain(error.errors())
    raise StoreError(f"{place}: is not an event of this version ({why})")


def _result(events: Sequence[BaseEvent], path: Path) -> Answer | Problem:
    """Return the body, folded from the events before it, or the problem."""
    fold = Fold()
    for line, event in enumerate(events, 2):
        if isinstance(event, Failed):
            return event.problem
        if isinstance(event, AnswerReady):
            try:
                body = fold.answer(event.body.timing_ms)
            except ValueError as error:
                raise StoreError(f"{path}:{line}: {error}") from None
            if body.model_dump_json() != event.body.model_dump_json():
                raise StoreError(
                    f"{path}:{line}: the preceding events do not produce this body; the file was "
                    "changed, or another version wrote it"
                )
            return body
        fold.add(event)
    raise StoreError(f"{path}:{len(events) + 1}: has neither an answer nor an error")


def find_traces(given: Sequence[Path]) -> list[Path]:
    """Return the given files and the traces below the given folders.

    Of a folder, only the files of the lowest level are taken: DATASET/METHOD/ID.jsonl below the
    folder of an evaluation, or fewer names below a part of it. Raises StoreError if there are none.
    """
    found = [file for path in given for file in _below(path)]
    if not found:
        raise StoreError(f"there is no trace in {', '.join(map(str, given))}")
    return found


def _below(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    # Above the folders of datasets and methods, there may be the rows of an evaluation.
    levels = (sorted(path.glob(f"{folders}*{SUFFIX}")) for folders in ("*/*/", "*/", ""))
    return next(filter(None, levels), [])
