"""The datasets of an evaluation: files of questions with gold answers, in the published formats.

`formats.py` converts each published format to rows. A row is an object with `question`, and with
`answer` or `answers` (text, number, a boolean for yes or no, or a list of alternatives) and
optionally `answer_aliases`. A compound gold answer is given as `parts` (each a text or a list of
aliases), or as an `answer` whose parts are joined by ` && `. With `choices`, an answer that is one
of their letters is replaced by the text of that choice. Optional fields are `id`, `route`,
`supporting_passage_ids`, `supporting_titles`, and `answerable` (false: there is no answer). Other
fields are ignored.

A file has a row on each line (JSON, or tab-separated under a line with the names), or is one JSON
document with a list of rows.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.answer.request import Question
from service.core.domain import RouteName
from service.core.errors import InvalidRequest
from service.core.validation import explain
from service.evaluation.formats import FORMATS, Format, detect
from service.retrieval.ingest.formats.base import DAMAGED, open_input

JOINT: Final = " && "
ROUTES: Final[Mapping[str, RouteName]] = {name: name for name in get_args(RouteName)}
ALIASES: Final = "id_aliases.json"  # 2Wiki's aliases of answers, in the folder of its questions
_LISTS: Final = ("data", "Data")  # the fields with the elements of SQuAD's and TriviaQA's object
_MOST_PROBLEMS: Final = 20
_FORM: Final = 'Write a JSON object on each line: {"question": "…", "answer": "…"}'
# File names that do not identify the dataset; the name of the folder is used instead.
_PLAIN: Final = frozenset({"questions", "dev", "test", "train", "validation", "data", "qa"})


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question with its gold answers.

    Each of the `answers` is correct as a whole; if there are none, abstaining is correct. `parts`
    are the aliases of each part of a compound answer. `supporting` are the ids of the gold
    passages; `supporting_titles` are the case-folded titles of gold articles, where the dataset
    names articles.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...] = ()
    route: RouteName | None = None
    supporting: frozenset[str] = frozenset()
    supporting_titles: frozenset[str] = frozenset()

    @property
    def gold_passages(self) -> int:
        """The number of gold passages."""
        return len(self.supporting) + len(self.supporting_titles)

    @property
    def golds(self) -> tuple[str, ...]:
        """Return every text that is a correct answer or a part of one."""
        return tuple(alias for part in self.parts for alias in part) or self.answers


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and math.isfinite(value):
        return str(value)
    return value.strip() if isinstance(value, str) else value


def _as_texts(value: object) -> list[object]:
    """Return one value or a list of values as texts; booleans become yes and no."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [_as_text(value) for value in values]


Texts = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_texts)]


class QuestionRow(BaseModel):
    """The fields of a row, as the module describes them."""

    model_config = ConfigDict(strict=True)

    question: Question
    id: Annotated[str, Field(min_length=1)] | int | None = None
    answer: Texts = []
    answers: Texts = []
    answer_aliases: Texts = []
    parts: Annotated[list[Annotated[Texts, Field(min_length=1)]], Field(min_length=1)] | None = None
    choices: Any = None
    route: RouteName | None = None
    supporting_passage_ids: Texts = []
    supporting_titles: Texts = []
    answerable: Any = None


def read_question(
    row: Mapping[str, Any], default_id: str, *, may_abstain: bool = False
) -> GoldQuestion:
    """Read one row.

    With `may_abstain`, a question that is not `answerable` has no answers. Raises ValueError with
    the invalid field and the reason.
    """
    try:
        read = QuestionRow.model_validate(row)
    except ValidationError as error:
        raise ValueError(explain(error.errors())) from None
    answers, parts = [*read.answer, *read.answers, *read.answer_aliases], read.parts or []
    if isinstance(read.choices, dict):
        answers = [str(read.choices.get(answer, answer)) for answer in answers]
    if not parts:
        joined = next((answer for answer in answers if JOINT in answer), "")
        parts = [[part.strip()] for part in joined.split(JOINT) if part.strip()]
    if parts:
        answers = [JOINT.join(part[0] for part in parts), *answers]
    if may_abstain and read.answerable is False:
        answers, parts = [], []
    elif not answers:
        raise ValueError("has no answer: add `answer`, `answers` or `parts`")
    return GoldQuestion(
        id=default_id if read.id is None else str(read.id),
        question=read.question,
        answers=tuple(dict.fromkeys(answers)),
        parts=tuple(map(tuple, parts)),
        route=read.route,
        supporting=frozenset(read.supporting_passage_ids),
        supporting_titles=frozenset(map(str.casefold, read.supporting_titles)),
    )


class DatasetError(ValueError):
    """Raised for a file that cannot be evaluated.

    `problems` has one line per problem, with file, line or element, and reason.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Element(NamedTuple):
    """An element of a file, or in `found` the reason why it is invalid.

    `place` is `:LINE`, or `: element NUMBER` in a JSON document. Both count from 1.
    """

    place: str
    number: int
    found: Mapping[str, Any] | str


def load_file(path: Path, format: str | None = None) -> tuple[list[GoldQuestion], Format]:
    """Return all questions of a file, and its format.

    Without `format`, the format is detected from the content. Raises DatasetError with the first 20
    invalid lines.
    """
    elements = list(elements_of(path))
    first = next((e.found for e in elements if not isinstance(e.found, str)), None)
    known = FORMATS[format] if format else detect(first or {})
    beside = _beside(known, path.parent)
    questions: dict[str, GoldQuestion] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for element in elements:
        for place, read in _questions_of(element, known, beside):
            if isinstance(read, str):
                problems.append(f"{path}{place}: {read}")
            elif read.id in questions:
                earlier = f"the id {read.id!r} occurs earlier, at {path.name}{places[read.id]}"
                problems.append(f"{path}{place}: {earlier}")
            else:
                questions[read.id], places[read.id] = read, place
    if not questions and not problems:
        problems.append(f"{path} contains no questions")
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        extra = [f"{path}: {more} more invalid lines"] if more > 0 else []
        raise DatasetError(
            [*problems[:_MOST_PROBLEMS], *extra, *([_FORM] if first is None else [])]
        )
    return list(questions.values()), known


def _questions_of(
    element: Element, format: Format, beside: Beside
) -> Iterator[tuple[str, GoldQuestion | str]]:
    """Yield the place of each question of an element, with the question or with the problem."""
    if isinstance(element.found, str):
        yield element.place, element.found
        return
    key, more = beside
    try:
        found = format.read({**element.found, **more.get(str(element.found.get(key)), {})})
    except ValueError as error:
        yield element.place, str(error)
        return
    several = isinstance(found, list)
    for count, row in enumerate(found if isinstance(found, list) else [found], 1):
        place = f"{element.place}: question {count}" if several else element.place
        name = f"{element.number}.{count}" if several else str(element.number)
        try:
            yield place, read_question({"route": format.route, **row}, name, may_abstain=True)
        except ValueError as error:
            yield place, str(error)


def elements_of(path: Path) -> Iterator[Element]:
    """Yield every element of a file, which may be compressed.

    Raises DatasetError if it cannot be read or is not UTF-8, or if a JSON document is invalid. An
    invalid line is an element with the reason.
    """
    content = _content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = before.count(b"\n") + 1
        at = error.start - before.rfind(b"\n") - 1
        raise DatasetError([f"{path}:{place}: is not UTF-8 at byte {at}"]) from None
    first = text.lstrip().partition("\n")[0]
    listed = _document(text, first, path)
    if listed is not None:
        for number, one in enumerate(listed, 1):
            yield Element(f": element {number}", number, _checked(one))
        return
    table = not first.startswith("{") and "\t" in first
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in lines[table:]:
        value = _row(line, first) if table else _object(line)
        yield Element(f":{number}", number, value)


def _document(text: str, first: str, path: Path) -> list[Any] | None:
    """Return the elements of a JSON document, or None for lines.

    Raises DatasetError if a document is invalid: one that is an array, or an object whose `first`
    line is only its bracket. An error in a line of JSONL is reported together with those of other
    lines.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not first.startswith("[") and first.strip() != "{":
            return None
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise DatasetError([f"{path}:{line}: {_reason(error)}"]) from None
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return None
    return next((rows for name in _LISTS if isinstance(rows := value.get(name), list)), None)


def _object(line: str) -> Mapping[str, Any] | str:
    try:
        return _checked(json.loads(line))
    except (ValueError, RecursionError) as error:
        return _reason(error)


def _row(line: str, first: str) -> Mapping[str, Any] | str:
    """Return a row of a tab-separated table by the names in its `first` line."""
    names = first.rstrip("\r").split("\t")
    try:
        fields = next(csv.reader([line.rstrip("\r")], delimiter="\t"))
    except csv.Error as error:
        return f"is not a row of a table: {error}"
    if len(fields) != len(names):
        return f"has {len(fields)} fields, but the first line has {len(names)}"
    return dict(zip(names, fields, strict=True))


def _checked(value: object) -> Mapping[str, Any] | str:
    return value if isinstance(value, dict) else "is not a JSON object"


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg} at column {error.colno}"
    if isinstance(error, RecursionError):
        return "is nested too deep"
    return "contains an integer with too many digits"  # json's only other ValueError


def _content(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is compressed with gzip or zstd."""
    try:
        with open_input(path.resolve(), path.name) as opened:
            return opened.stream.read()
    except DAMAGED as error:
        problem = f"{path}: the compressed data is truncated or damaged ({error})"
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
    raise DatasetError([problem])


# The name of a field, and for its values what files beside the questions add to a row.
Beside = tuple[str, Mapping[str, Mapping[str, list[str]]]]


def _beside(format: Format, folder: Path) -> Beside:
    """Return the aliases and demonyms that 2Wiki's script accepts, from the file that has them by
    `answer_id`; or the relevant passages of BEIR's queries, from all files of `qrels/`."""
    known: dict[str, dict[str, list[str]]] = {}

    def add_aliases(row: Any) -> None:
        known[row["Q_id"]] = {"answer_aliases": [*row["aliases"], *row["demonyms"]]}

    def add_relevant(row: Any) -> None:
        judged = known.setdefault(row["query-id"], {"supporting_passage_ids": []})
        if int(row["score"]) > 0:
            judged["supporting_passage_ids"].append(row["corpus-id"])

    if format.name == "2wiki":
        _read_beside([folder / ALIASES], add_aliases, "an object with Q_id, aliases and demonyms")
        return "answer_id", known
    files = sorted((folder / "qrels").glob("*.tsv")) if format.name == "beir" else []
    _read_beside(files, add_relevant, "a row with query-id, corpus-id and score")
    return "_id", known


def _read_beside(files: Sequence[Path], add: Callable[[Any], None], form: str) -> None:
    """Add each element of the files that exist. Raises DatasetError for one of another form."""
    for path in files:
        for element in elements_of(path) if path.is_file() else ():
            try:
                add(element.found)
            except (ValueError, KeyError, TypeError):
                raise DatasetError([f"{path}{element.place}: is not {form}"]) from None


@dataclass(frozen=True, slots=True)
class Dataset:
    """The questions of a file.

    `collection` is the collection to search, or None for the default one. `total` is the number of
    questions in the file, before any limit. `route` is the gold route from the command line for
    questions that have none. `aliases` is the digest of the file with 2Wiki's aliases, if there is
    one.
    """

    name: str
    file: Path
    sha256: str
    format: Format
    questions: tuple[GoldQuestion, ...]
    total: int
    collection: str | None = None
    aliases: str | None = None
    route: RouteName | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "sha256": self.sha256,
            "format": self.format.name,
            "questions": self.total,
            "route": self.route,
            **({"aliases": self.aliases} if self.aliases else {}),
        }


def named_file(given: str) -> tuple[str, Path]:
    """Return the dataset's name and file from `NAME=FILE` or `FILE`.

    Without a name, the dataset is named after the file, or after its folder if the file is called
    questions, dev, test or similar.
    """
    path = Path(given)
    name, equals, file = given.partition("=")
    if equals and not path.exists():
        return name, Path(file)
    compressed = path.suffix.lower() in {".gz", ".zst"}
    stem = Path(path.stem).stem if compressed else path.stem
    return (path.resolve().parent.name if stem.lower() in _PLAIN else stem), path


def by_dataset(option: str, given: Sequence[str], names: Sequence[str]) -> Mapping[str, str | None]:
    """Return the value of an option for each dataset.

    `VALUE` applies to all datasets without a `DATASET=VALUE`. Raises InvalidRequest for two values
    without a dataset, or for an unknown dataset.
    """
    chosen: dict[str, str | None] = {}
    rest: str | None = None
    for text in given:
        dataset, equals, value = text.rpartition("=")
        if equals and dataset not in names:
            raise InvalidRequest(
                f"{option} {text}: there is no dataset {dataset!r}; the datasets are "
                f"{', '.join(names)}"
            )
        if equals:
            chosen[dataset] = value
        elif rest is not None:
            raise InvalidRequest(
                f"{option} {text}: {rest!r} is already for all datasets; say which dataset it is "
                "for by DATASET=VALUE"
            )
        else:
            rest = text
    return {name: chosen.get(name, rest) for name in names}


def read_datasets(
    given: Sequence[str],
    collections: Sequence[str] = (),
    formats: Sequence[str] = (),
    limit: int | None = None,
    routes: Sequence[str] = (),
) -> list[Dataset]:
    """Read every dataset. Blocking.

    Raises DatasetError with the problems of all of them, and InvalidRequest if two have the same
    name or an option names an unknown dataset, format or route.
    """
    files: dict[str, Path] = {}
    for name, path in map(named_file, given):
        if name in files:
            raise InvalidRequest(
                f"two datasets are called {name!r}: {files[name]} and {path}; name one by NAME=FILE"
            )
        files[name] = path
    searched = by_dataset("--collection", collections, list(files))
    read_as = by_dataset("--format", formats, list(files))
    routed = by_dataset("--route-of", routes, list(files))
    for option, values, known in (("--format", read_as, FORMATS), ("--route-of", routed, ROUTES)):
        for wanted in values.values():
            if wanted is not None and wanted not in known:
                raise InvalidRequest(f"{option} {wanted!r} is unknown; known: {', '.join(known)}")
    datasets: list[Dataset] = []
    problems: list[str] = []
    for name, path in files.items():
        try:
            questions, written = load_file(path, read_as[name])
        except DatasetError as error:
            problems += error.problems
            continue
        route = ROUTES.get(routed[name] or "")
        asked = tuple(
            replace(question, route=question.route or route) for question in questions[:limit]
        )
        beside = path.parent / ALIASES
        aliases = _digest(beside) if written.name == "2wiki" and beside.is_file() else None
        datasets.append(
            Dataset(
                name, path, _digest(path), written, asked, len(questions), searched[name], aliases,
                route,
            )
        )  # fmt: skip
    if problems:
        raise DatasetError(problems)
    return datasets


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
