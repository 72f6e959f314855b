"""The elements of a file of questions: lines of JSONL or TSV, or elements of one JSON document."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Where the elements of a JSON object stand that is a whole dataset: SQuAD's and TriviaQA's.
_LISTS: Final = ("data", "Data")
_DECODER: Final = json.JSONDecoder()
NOT_UTF8: Final = "is not UTF-8 at byte"
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Element:
    """An element, or in `found` what is wrong with it. `line` is where it begins, from 1; `number`
    counts JSON elements from 1, and is the line in files that have one element per line."""

    line: int
    number: int
    found: Mapping[str, Any] | str


def elements_of(content: bytes) -> Iterator[Element]:
    """Yield every element. After an error in a JSON document nothing follows; in files with one
    element per line, the next line does."""
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
    """Whether a file that begins with this line may be one JSON object rather than JSONL."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return isinstance(value, dict) and any(isinstance(value.get(name), list) for name in _LISTS)


def _whole(content: bytes) -> Iterator[Element] | None:
    """The elements of a JSON object with a list of them; None if it is none."""
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return iter([_not_utf8(content, error)])
    except json.JSONDecodeError as error:
        # A line of JSONL with an error is told with the others.
        spread = content.lstrip().partition(b"\n")[0].strip() == b"{"
        return iter([_not_json(error)]) if spread else None
    except RecursionError:
        return None
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
        try:
            number += 1
            value, end = _DECODER.raw_decode(text, at)
            following = _after(text, end)
            if not text.startswith((",", "]"), following):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, following)
        except json.JSONDecodeError as error:
            yield _not_json(error)
            return
        except RecursionError:
            yield Element(line, number, "is nested too deep")
            return
        line += text.count("\n", counted, at)
        counted = at
        yield Element(line, number, _checked(value))
        at = _after(text, following + 1) if text.startswith(",", following) else following


def _after(text: str, at: int) -> int:
    """The next place that is not white space."""
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
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        return "is nested too deep"


def _table(content: bytes) -> Iterator[Element]:
    """Rows with tabs between the fields, and their names in the first line."""
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
        if len(fields) != len(names):
            told = f"has {len(fields)} fields, but the first line has {len(names)}"
            yield Element(number, number, told)
        else:
            yield Element(number, number, dict(zip(names, fields, strict=True)))


def _checked(value: object) -> Mapping[str, Any] | str:
    return value if isinstance(value, dict) else "is not a JSON object"


def _not_json(error: json.JSONDecodeError) -> Element:
    told = f"is not JSON: {error.msg} at column {error.colno}"
    return Element(error.lineno, error.lineno, told)


def _not_utf8(content: bytes, error: UnicodeDecodeError) -> Element:
    before = content[: error.start]
    line, start = before.count(b"\n") + 1, before.rfind(b"\n") + 1
    return Element(line, line, f"{NOT_UTF8} {error.start - start}")
