"""Split a file of questions into elements: lines of JSONL or TSV, or elements of one JSON
document."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# The fields that hold the elements of a dataset in one JSON object: SQuAD's and TriviaQA's.
_LISTS: Final = ("data", "Data")
_DECODER: Final = json.JSONDecoder()
NOT_UTF8: Final = "is not UTF-8 at byte"
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a file, or in `found` the reason why it is invalid.

    `line` is the line where it begins, from 1. `number` counts the elements of a JSON document from
    1; in files with one element per line it is the line.
    """

    line: int
    number: int
    found: Mapping[str, Any] | str


def elements_of(content: bytes) -> Iterator[Element]:
    """Yield every element of a file.

    An error in a JSON document ends the iteration. In a file with one element per line, the
    iteration continues with the next line.
    """
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    first = start.partition(b"\n")[0]
    if start.startswith(b"["):
        yield from _array(content)
    elif start.startswith(b"{"):
        whole = _whole(content) if _is_document(first) else None
        yield from _lines(content) if whole is None else whole
    elif b"\t" in first:
        yield from _table(content)
    else:
        yield from _lines(content)


def _is_document(first: bytes) -> bool:
    """Whether this first line can begin a JSON object that spans the file, rather than JSONL."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return isinstance(value, dict) and any(isinstance(value.get(name), list) for name in _LISTS)


def _whole(content: bytes) -> Iterator[Element] | None:
    """Return the elements of a JSON object that contains a list of them, or None for any other
    content."""
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return iter([_not_utf8(content, error)])
    except (ValueError, RecursionError) as error:
        # An error in a line of JSONL is reported together with those of other lines.
        spread = content.lstrip().partition(b"\n")[0].strip() == b"{"
        return iter([_not_json(error, 1, 1)]) if spread else None
    found = next((own for name in _LISTS if isinstance(own := value.get(name), list)), None)
    if found is None:
        return None
    return (Element(1, number, _checked(each)) for number, each in enumerate(found, 1))


def _array(content: bytes) -> Iterator[Element]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield _not_utf8(content, error)
        return
    at = _after(text, text.index("[") + 1)
    line, counted, number = 1, 0, 0
    while not text.startswith("]", at):
        number += 1
        line += text.count("\n", counted, at)
        counted = at
        try:
            value, end = _DECODER.raw_decode(text, at)
            following = _after(text, end)
            if not text.startswith((",", "]"), following):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, following)
        except (ValueError, RecursionError) as error:
            yield _not_json(error, line, number)
            return
        yield Element(line, number, _checked(value))
        at = _after(text, following + 1) if text.startswith(",", following) else following
    rest = _after(text, at + 1)
    if rest < len(text):
        line = text.count("\n", 0, rest) + 1
        yield Element(line, line, "comes after the `]` that ends the list; write only one list")


def _after(text: str, at: int) -> int:
    """Return the next index that is not white space."""
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _lines(content: bytes) -> Iterator[Element]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield Element(number, number, _object(line))


def _object(line: bytes) -> Mapping[str, Any] | str:
    try:
        return _checked(json.loads(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        return f"{NOT_UTF8} {error.start}"
    except (ValueError, RecursionError) as error:
        return _reason(error)


def _table(content: bytes) -> Iterator[Element]:
    """Yield the rows of a tab-separated table whose first line contains the column names."""
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    names = lines[0].decode("utf-8", "replace").split("\t")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            fields = next(csv.reader([line.decode("utf-8")], delimiter="\t"))
        except UnicodeDecodeError as error:
            yield Element(number, number, f"{NOT_UTF8} {error.start}")
            continue
        except csv.Error as error:
            yield Element(number, number, f"is not a row of a table: {error}")
            continue
        if len(fields) != len(names):
            problem = f"has {len(fields)} fields, but the first line has {len(names)}"
            yield Element(number, number, problem)
        else:
            yield Element(number, number, dict(zip(names, fields, strict=True)))


def _checked(value: object) -> Mapping[str, Any] | str:
    return value if isinstance(value, dict) else "is not a JSON object"


def _not_json(error: ValueError | RecursionError, line: int, number: int) -> Element:
    """Return the element at the place of the error, or at `line` if the error has no place."""
    if isinstance(error, json.JSONDecodeError):
        line = number = error.lineno
    return Element(line, number, _reason(error))


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg} at column {error.colno}"
    if isinstance(error, RecursionError):
        return "is nested too deep"
    return "contains an integer with too many digits"  # json's only other ValueError


def _not_utf8(content: bytes, error: UnicodeDecodeError) -> Element:
    before = content[: error.start]
    line, start = before.count(b"\n") + 1, before.rfind(b"\n") + 1
    return Element(line, line, f"{NOT_UTF8} {error.start - start}")
