"""The contract of a pipeline: a function turns an item into rows or a reason for having none.

    async def work(item: Item[T], session: Session) -> Sequence[OutputRow]:
        parts = await session.ask(AskTeacher(prompt, stage="decompose"), read_parts)
        found = await session.search(parts[0], 10)
        …
        return [OutputRow({...}, source)]

The session calls the teacher, searches, and counts the parts that are left out (`session.lost`).
The run (`command.py`) counts dropped items and writes the output.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio

from service.core.domain import Passage, RetrieverName
from service.core.errors import (
    EngineFailure,
    EngineLimited,
    EngineRefusal,
    EngineTimeout,
    InvalidRequest,
    Overloaded,
)
from service.engines.base import FinishReason, GenerationRequest, Generator, Message, complete
from service.engines.reasoning import strip_thinking
from service.evaluation.datasets import DatasetError, elements_of
from service.prompts.quoting import quote
from service.prompts.templates import PromptTemplate, TemplateSet
from service.strategies.reading.text import json_values, member, one_line, plain_key, unwrap
from service.workshop.rows import RowOrigin
from service.workshop.splits import Split

T = TypeVar("T")


class Dropped(Exception):
    """Raised for an item that gives no row. `reason` is one of a few texts, by which the report
    counts items."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnusableReply(Dropped):
    """Raised for a reply that cannot be used. The teacher is called again."""


class BadLine(Dropped):
    """Raised for an input line that is not an item of the pipeline."""


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One unit of input. `id` is unique in a run, and the type of `content` depends on the
    pipeline. `question` is what is asked, if that is a part of the input."""

    id: str
    content: T
    source: RowOrigin
    question: str = ""

    @property
    def side(self) -> Split | None:
        return self.source.side_for(self.question)


@dataclass(frozen=True)
class OutputRow:
    """One line of the output, without its provenance.

    `kind` is one of the `kinds` of the pipeline. `source` names only the sources of this row.
    """

    fields: Mapping[str, Any]
    source: RowOrigin
    kind: str = ""

    @property
    def side(self) -> Split | None:
        return self.source.side_for(self.fields["question"])


def chat_row(task: str, question: str, turns: Iterable[Message], source: RowOrigin) -> OutputRow:
    """Return a row with a chat, of which the model learns its own turns."""
    messages = [
        {"role": turn.role, "content": turn.content, "learn": turn.role == "assistant"}
        for turn in turns
    ]
    return OutputRow({"task": task, "question": question, "messages": messages}, source)


Lines = Iterable[tuple[int, Mapping[str, Any]]]
BadLines = list[tuple[int, str]]  # numbers and reasons
Reader = Callable[[Lines, random.Random, BadLines], list[Item[T]]]


def read_each(lines: Lines, read: Callable[[Mapping[str, Any], str], T], bad: BadLines) -> list[T]:
    """Return what `read` makes of each line and of a default id for it. The lines for which it
    raises BadLine are added to `bad`."""
    found: list[T] = []
    for number, line in lines:
        try:
            found.append(read(line, f"line-{number}"))
        except BadLine as error:
            bad.append((number, error.reason))
    return found


def items_of(
    lines: Lines, read: Callable[[Mapping[str, Any], str], Item[T]], bad: BadLines
) -> list[Item[T]]:
    """Return the items of an input with one item per line; their ids must differ."""
    known: set[str] = set()

    def unique(line: Mapping[str, Any], default_id: str) -> Item[T]:
        item = read(line, default_id)
        if item.id in known:
            raise BadLine("id of an earlier line")
        known.add(item.id)
        return item

    return read_each(lines, unique, bad)


# The rows to write, and the number of omitted rows by reason.
Selection = tuple[list[OutputRow], Mapping[str, int]]


def keep_all(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    return list(rows), {}


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T]):
    """The data synthesis of one paper. `version` increases when the rows change for the same
    replies.

    `read` turns lines of the input into items, and adds invalid ones to its last argument; `work`
    turns an item into rows, and `select` chooses among all rows at the end, in the order of the
    input (for sampling and balance).
    `searches` means that the pipeline needs a collection. Rows of a named kind in `kinds` are
    written to a file of their own, `OUTPUT.<kind>.jsonl`. `templates` is the template set (a name
    or a folder) whose prompts the rows contain, if they contain prompts; it has those of `tasks`.
    """

    name: str
    version: int
    prompts: Prompts
    read: Reader[T]
    work: Callable[[Item[T], Session], Awaitable[Sequence[OutputRow]]]
    select: Callable[[Sequence[OutputRow], random.Random], Selection] = keep_all
    searches: bool = False
    kinds: tuple[str, ...] = ("",)
    templates: str = ""
    tasks: tuple[str, ...] = ()


# ---- input files


def read_lines(path: Path) -> tuple[list[tuple[int, Mapping[str, Any]]], BadLines]:
    """Return the JSON objects of a file, as `revelator evaluate` reads it, with the numbers of
    their lines or elements, and the invalid ones with their reasons.

    Raises InvalidRequest if the file cannot be read or is empty.
    """
    try:
        elements = list(elements_of(path))
    except DatasetError as error:
        raise InvalidRequest(error.problems[0]) from None
    if not elements:
        raise InvalidRequest(f"{path}: has no lines; give items as JSON Lines")
    good = [
        (element.number, element.found)
        for element in elements
        if not isinstance(element.found, str)
    ]
    bad = [(e.number, e.found.partition(":")[0]) for e in elements if isinstance(e.found, str)]
    return good, bad


def text_of(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a string with visible characters. Raises BadLine if it is not."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadLine(f"no `{name}`")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadLine(f"half a surrogate pair in `{name}`") from None
    return value.strip()


def list_of(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that must be a non-empty list. Raises BadLine if it is not."""
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise BadLine(f"no list `{name}`")
    return value


def passage_of(row: object) -> Passage:
    """Return a passage from an object with `id`, `title` and `text`. Raises BadLine if it is not
    one."""
    if not isinstance(row, dict):
        raise BadLine("a passage is no object")
    return Passage(text_of(row, "id"), text_of(row, "title"), text_of(row, "text"))


# ---- the teacher: its engine is called with retries while it is limited or unavailable

Finder = Callable[[str, int, RetrieverName], Awaitable[tuple[Passage, ...]]]
ATTEMPTS: Final = 3  # attempts at a call until its reply is usable (METHODS.md §4.5)
RETRY_TEMPERATURE: Final = 0.7  # greedy decoding would repeat the unusable reply
FAILURES: Final = 5  # failures of one call after which it is still retried
LIMITS: Final = 50  # rate limits of one call; the server is available and states when to retry
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
SHIPPED: Final = Path(__file__).parent / "templates"
_MARKER = re.compile(
    r"(?<![^\W_])(Simple Question ?\d*|Compound Question|Paragraph|Known Info|JSON_OUTPUT|Entity"
    r"|Relations?(?: ?\d+)?)>?\s*[:：]",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(?=/?(?:question|document|answer|thought|known info|json_output)>)", re.I)


@dataclass(slots=True, kw_only=True)
class AskTeacher(GenerationRequest):
    """A call of the teacher. `stage` names it in the report.

    The first attempt is greedy unless `temperature` is set. Further attempts have a temperature of
    at least `RETRY_TEMPERATURE`.
    """

    stage: str
    max_tokens: int = 512
    attempts: int = ATTEMPTS


@dataclass
class Spent:
    """The cost of an item or of a run. `bad` counts unusable replies, by stage and reason."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    bad: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, other: Spent) -> None:
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.bad.update(other.bad)


def wait_after(failure: EngineFailure | Overloaded, failures: int) -> float | None:
    """Return the delay in seconds before the next attempt after `failures` failures, or None if
    retrying is pointless."""
    if isinstance(failure, EngineRefusal):
        return None
    growing = min(FIRST_WAIT_S * 2 ** (failures - 1), LONGEST_WAIT_S)
    if isinstance(failure, EngineLimited):
        return None if failures > LIMITS else max(growing, failure.retry_after or 0)
    return None if failures > FAILURES else growing


def kind_of(failure: EngineFailure | Overloaded) -> str:
    if isinstance(failure, EngineLimited):
        return "rate-limited"
    return "timed out" if isinstance(failure, EngineTimeout) else "engine failed"


class Teacher:
    """Calls `engine` with `model`; None selects the engine's default model.

    `label` names the model in every row. No call starts while the server limits its callers.
    `sleep` and `clock` (in seconds) can be replaced in tests.
    """

    def __init__(
        self,
        engine: Generator,
        label: str,
        model: str | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.label = label
        self._model = model
        self._sleep = sleep
        self._clock = clock
        self._not_before = 0.0

    async def say(self, ask: AskTeacher, seed: int, spent: Spent) -> tuple[str, FinishReason]:
        """Return one reply, without its reasoning, and add its cost to `spent`.

        Raises Dropped if the engine rejects the call, and its failure after all retries.
        """
        request = replace(ask, seed=seed, model=self._model)
        failures = 0
        while True:
            await self._until_allowed()
            spent.calls += 1
            try:
                completion = await complete(self.engine, request)
            except (EngineFailure, Overloaded) as failure:
                failures += 1
                spent.bad[f"{ask.stage}: {kind_of(failure)}"] += 1
                await self._wait(failure, failures, ask.stage)
            else:
                spent.prompt_tokens += completion.usage.prompt_tokens
                spent.completion_tokens += completion.usage.completion_tokens
                return strip_thinking(completion.text).strip(), completion.finish

    async def _wait(self, failure: EngineFailure | Overloaded, failures: int, stage: str) -> None:
        seconds = wait_after(failure, failures)
        if isinstance(failure, EngineRefusal):
            raise Dropped(f"{stage}: refused by the teacher") from failure
        if seconds is None:
            raise failure
        if isinstance(failure, EngineLimited):
            self._not_before = max(self._not_before, self._clock() + seconds)
        else:
            await self._sleep(seconds)

    async def _until_allowed(self) -> None:
        while (seconds := self._not_before - self._clock()) > 0:
            await self._sleep(seconds)


class Session:
    """What a pipeline may do for one item: call the teacher, search, and draw from `rng`.

    `key` identifies the item in its run; all that is random follows from it. `find` searches the
    run's collection; training rows never see held-out passages. `lost` counts the parts of the item
    that are left out, by reason; an item without rows is dropped for the most frequent one.
    `others` are teachers of some stages alone. `templates` is that of the pipeline.
    """

    def __init__(
        self,
        teacher: Teacher,
        find: Finder,
        key: str,
        others: Mapping[str, Teacher] | None = None,
        templates: str = "",
    ) -> None:
        self.templates = TemplateSet(templates or "full")
        self.rng = random.Random(key)
        self.spent = Spent()
        self.lost: Counter[str] = Counter()
        self._teacher, self._others = teacher, others or {}
        self._find = find
        self._key = key
        self._asked = 0

    async def ask(self, request: AskTeacher, read: Callable[[str], T]) -> T:
        """Call the teacher until `read` accepts a complete reply. `read` raises UnusableReply to
        reject one.

        Raises Dropped if all attempts are rejected.
        """
        reason, teacher = "", self._others.get(request.stage, self._teacher)
        hotter = replace(request, temperature=max(request.temperature, RETRY_TEMPERATURE))
        for attempt in range(request.attempts):
            self._asked += 1
            seed = random.Random(f"{self._key}:{self._asked}").getrandbits(31)
            call = hotter if attempt else request
            text, finish = await teacher.say(call, seed, self.spent)
            try:
                if finish == "length" or not text.strip():
                    raise UnusableReply("truncated" if finish == "length" else "empty")
                return read(text)
            except UnusableReply as error:
                reason = error.reason
                self.spent.bad[f"{request.stage}: {reason}"] += 1
        raise Dropped(f"{request.stage}: {reason}")

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Count a part of the item whose work is dropped in the block, and go on without it."""
        try:
            yield
        except Dropped as drop:
            self.lost[drop.reason] += 1

    async def search(
        self, query: str, top_k: int, retriever: RetrieverName = "hybrid"
    ) -> tuple[Passage, ...]:
        """Return the passages found, best first."""
        return await self._find(query, top_k, retriever)


# ---- prompts and replies


def field(text: str) -> str:
    """Return data as one line that cannot be mistaken for the structure of a prompt."""
    return _MARKER.sub(r"\1 -", quote(_TAG.sub("< ", text)))


class Prompts:
    """The templates of one pipeline. Each file is a user message with `$name` fields.

    `shared` are files from elsewhere, for prompts that are also used when serving.
    """

    def __init__(self, pipeline: str, shared: tuple[Path, ...] = ()) -> None:
        self.folder = SHIPPED / pipeline
        self.shared = shared

    @cached_property
    def _templates(self) -> dict[str, PromptTemplate]:
        files = sorted((*self.folder.glob("*.txt"), *self.shared))
        texts = {path.stem: path.read_text(encoding="utf-8").rstrip("\n") for path in files}
        return {name: PromptTemplate(text) for name, text in texts.items()}

    def messages(self, template: str, **fields: str) -> tuple[Message, ...]:
        """Return the prompt as a chat.

        `fields` are inserted unchanged; pass data through `field` first. Raises KeyError for an
        unknown template or a missing field.
        """
        return (Message("user", self._templates[template].fill(fields)),)

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that identify all templates, for the provenance of
        rows."""
        texts = "\0".join(f"{name}\0{t.text}" for name, t in self._templates.items())
        return hashlib.sha256(texts.encode()).hexdigest()[:12]


def json_object(text: str, *keys: str) -> dict[str, Any]:
    """Return the values of the first JSON object in `text` that has all `keys`, by these names.

    Other text is ignored, as are case, spaces and underscores in keys.
    """
    objects = [value for value in json_values(unwrap(text)) if isinstance(value, dict)]
    if not objects:
        raise UnusableReply("not JSON")
    for value in objects:
        found = {key: member(value, {plain_key(key)}) for key in keys}
        if None not in found.values():
            return found
    raise UnusableReply("keys missing")


def text_in(value: Mapping[str, Any], key: str) -> str:
    """Return a string or a number as one line of text. Raises UnusableReply for other values."""
    text = value[key]
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str):
        raise UnusableReply(f"`{key}` is no text")
    if not (line := one_line(text)):
        raise UnusableReply(f"`{key}` is empty")
    return line
