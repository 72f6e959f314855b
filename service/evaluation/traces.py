"""Traces: the unchanged events of one question, one JSON object per line.

A trace is the file `DIR/DATASET/METHOD/ID.jsonl`, with the names quoted as in URLs. Its first line
describes the question:

| Field | Meaning |
|---|---|
| `trace` | version of this layout |
| `version` | of the service that answered |
| `dataset`, `method`, `id` | the key of the row |
| `request` | the fields of the request |
| `gold` | `answers`, `parts`, `route`, `supporting` and `supporting_titles` of the dataset; null for a question of `revelator ask`, which has no gold answers |

Each later line is an event as `POST /answer/stream` sends it, with its name in `event`; the last
is `done`. A trace thus contains all parts of the body, and `read_trace` assembles it again.
"""  # noqa: E501 (a table)

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import anyio.to_thread
from pydantic import TypeAdapter, ValidationError

from service import __version__
from service.answer.events import AnswerReady, BaseEvent, Done, Event, Failed, Start
from service.answer.fold import Fold
from service.core.domain import Answer, Problem
from service.core.errors import StoreError
from service.core.files import write_whole
from service.evaluation.datasets import GoldQuestion
from service.evaluation.rows import Key

VERSION: Final = 1
SUFFIX: Final = ".jsonl"
_LONGEST_NAME: Final = 120  # in characters; most file systems allow 255 bytes
_EVENT: Final[TypeAdapter[BaseEvent]] = TypeAdapter(Event)
_HEADER: Final = frozenset({"trace", "version", "dataset", "method", "id", "request", "gold"})


@dataclass(frozen=True, slots=True)
class Trace:
    """A question with all its events.

    `gold` is None if the question is not of a dataset. `result` is the answer's body, or the
    problem that ended the question.
    """

    key: Key
    version: str
    request: Mapping[str, Any]
    question: str
    gold: GoldQuestion | None
    events: tuple[BaseEvent, ...]
    result: Answer | Problem

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


def header_of(key: Key, request: Mapping[str, Any], gold: GoldQuestion | None) -> dict[str, Any]:
    """Return the first line of a trace."""
    return {
        "trace": VERSION,
        "version": __version__,
        **key._asdict(),
        "request": dict(request),
        "gold": None
        if gold is None
        else {
            "answers": list(gold.answers),
            "parts": [list(part) for part in gold.parts],
            "route": gold.route,
            "supporting": sorted(gold.supporting),
            "supporting_titles": sorted(gold.supporting_titles),
        },
    }


def recorder_of_question(path: Path, fields: Mapping[str, Any]) -> Recorder:
    """Return a recorder that writes a question without gold answers to a file."""
    key = Key("question", str(fields.get("loop", "default")), path.stem)
    return Recorder(path, header_of(key, fields, None))


def encode(event: BaseEvent) -> str:
    """Return an event as a line of JSON, without the line end."""
    return event.model_dump_json()


class Recorder:
    """Collects the events of one question, and writes them when it has ended."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self._lines = [json.dumps(header, ensure_ascii=False, default=str)]
        self._whole = False

    def see(self, event: BaseEvent) -> None:
        self._lines.append(encode(event))
        self._whole = isinstance(event, Done)

    async def keep(self) -> None:
        """Write the trace if the question has ended. Raises StoreError if writing fails."""
        if self._whole:
            content = "\n".join(self._lines) + "\n"
            await anyio.to_thread.run_sync(_write, self._path, content)


def _write(path: Path, content: str) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def read_trace(path: Path) -> Trace:
    """Read a trace and assemble the body from its events.

    Raises StoreError, with file and line, if the file cannot be read, is truncated, has another
    layout version, or if its events do not match the body that it contains.
    """
    lines = _lines(path)
    header = _header(lines[0], path)
    events = tuple(_event(line, f"{path}:{n}") for n, line in enumerate(lines[1:], 2))
    if not events or not isinstance(events[-1], Done):
        raise StoreError(f"{path}:{len(lines)}: is truncated: its last event is not `done`")
    try:
        key = Key(str(header["dataset"]), str(header["method"]), str(header["id"]))
        request = dict(header["request"])
        question = str(request["question"])
        gold = None if header["gold"] is None else _gold(key.id, question, header["gold"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StoreError(f"{path}:1: is not the first line of a trace ({error!r})") from None
    result = _result(events, path)
    return Trace(key, str(header["version"]), request, question, gold, events, result)


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
    for number, line in enumerate(lines, 1):
        if line.endswith("\r"):
            raise StoreError(
                f"{path}:{number}: ends with CR LF, but a trace is written with LF; the file was "
                "converted, so copy it again without a conversion of line ends"
            )
    return lines


def _header(line: str, path: Path) -> Mapping[str, Any]:
    value: Any = None
    with suppress(ValueError, RecursionError):
        value = json.loads(line)
    if not isinstance(value, dict) or "trace" not in value:
        raise StoreError(f"{path}:1: is not a trace: its first line has no field `trace`")
    if value["trace"] != VERSION:
        raise StoreError(
            f"{path}:1: is of version {value['trace']!r}, written by revelator "
            f"{value.get('version', 'of an unknown version')}; this version reads {VERSION}. "
            "Evaluate again, or use that version"
        )
    if missing := sorted(_HEADER - value.keys()):
        raise StoreError(f"{path}:1: the first line lacks these fields: {', '.join(missing)}")
    return value


def _event(line: str, place: str) -> BaseEvent:
    try:
        event = _EVENT.validate_json(line)
        if encode(event) == line:
            return event
        why = "its fields differ"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        why = f"{where}: {first['msg']}" if where else first["msg"]
    raise StoreError(f"{place}: is not an event of this version ({why})")


def _gold(id: str, question: str, gold: Mapping[str, Any]) -> GoldQuestion:
    return GoldQuestion(
        id=id,
        question=question,
        answers=tuple(gold["answers"]),
        parts=tuple(tuple(part) for part in gold["parts"]),
        route=gold["route"],
        supporting=frozenset(gold["supporting"]),
        supporting_titles=frozenset(gold["supporting_titles"]),
    )


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


def shown_again(trace: Trace, *, only_body: bool = False) -> Iterator[str]:
    """Yield the lines of the original events, or with `only_body` the body of `POST /answer`."""
    if only_body:
        yield trace.result.model_dump_json()
    else:
        yield from map(encode, trace.events)


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
