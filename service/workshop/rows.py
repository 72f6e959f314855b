"""The rows that `train` reads and `synthesize` writes, as JSON Lines.

`TrainingRow` is a chat (`train sft`, `train router`). The loss is computed on its messages marked
`learn`, which are the model's own words, never a prompt or a retrieved text. `LabelerRow` and
`FilterRow` (METHODS.md §4.5, step 6) contain the words of `service.text.words`, as the encoders
split them. `provenance` describes the sources of a row, so that the rule on held-out data can be
checked on the row alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from service.core.domain import Passage
from service.core.errors import InvalidRequest
from service.core.validation import Strict, explain
from service.encoders.inputs import markable_words
from service.engines.base import ChatRole
from service.text.words import word_spans
from service.workshop.splits import Split, side_of


class RowMessage(Strict):
    role: ChatRole
    content: str
    learn: bool = False

    @model_validator(mode="after")
    def _own_words(self) -> Self:
        if self.learn and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} cannot be a training target")
        if self.learn and not self.content.strip():
            raise ValueError("an empty message cannot be a training target")
        return self


class RowOrigin(Strict):
    """The sources of an item or a row, which decide its side of the split
    (`service.workshop.splits`).

    `sources` and `titles` are the ids and titles of all its passages, `answer_titles` the titles of
    those that contain the answer. `written` means that people wrote the question.
    """

    sources: list[str] = []
    titles: list[str] = []
    answer_titles: list[str] = []
    written: bool = False

    def side_for(self, question: str) -> Split | None:
        return side_of(self.titles, self.answer_titles, question if self.written else None)

    def beside(self, passages: Collection[Passage]) -> RowOrigin:
        """Return the origin with these passages added."""
        ids = [*self.sources, *(passage.passage_id for passage in passages)]
        titles = [*self.titles, *(passage.title for passage in passages)]
        added = {"sources": list(dict.fromkeys(ids)), "titles": list(dict.fromkeys(titles))}
        return self.model_copy(update=added)


class RowProvenance(RowOrigin):
    """The sources of a row, and how it was made.

    `teacher` is the model, or `rules`; `query_teacher` wrote the queries in its place. The other
    fields allow the row to be reproduced: `engine`, `collection`, `prompts` (a digest of the
    teacher's templates), `templates` (the template set of the row's own prompt), `version` (of the
    pipeline), `seed`, `side` and `date`.
    """

    pipeline: str = Field(min_length=1)
    teacher: str = Field(min_length=1)
    item: str = Field(min_length=1)
    query_teacher: str | None = None
    engine: str | None = None
    collection: str | None = None
    prompts: str | None = None
    templates: str | None = None
    version: int | None = None
    seed: int | None = None
    side: Split | None = None
    date: str | None = None


class Sourced(Strict):
    """A row of any kind, with the question that it was made for and its provenance."""

    question: str = Field(min_length=1)
    provenance: RowProvenance

    @property
    def side(self) -> Split | None:
        """The side of the split for which the row may be used, or None for neither."""
        return self.provenance.side_for(self.question)


AnyRow = TypeVar("AnyRow", bound=Sourced)


class TrainingRow(Sourced):
    """A chat.

    `task` is a role of METHODS.md §1.3 (`route`, `decompose`, …), `comparison` (a `final`),
    `autorag` or `dragin`. `question` is the user's question without any prompt; `train router`
    reads it together with the last message.
    """

    task: str = Field(pattern=r"^[a-z_]+$")
    messages: list[RowMessage] = Field(min_length=2)

    @model_validator(mode="after")
    def _a_chat(self) -> Self:
        roles = [message.role for message in self.messages]
        turns = roles[1:] if roles[0] == "system" else roles
        if turns != [("user", "assistant")[index % 2] for index in range(len(turns))]:
            raise ValueError(
                f"the turns of user and assistant do not alternate: {', '.join(roles)}"
            )
        if roles[-1] != "assistant":
            raise ValueError("the last message is not the assistant's")
        if not any(message.learn for message in self.messages):
            raise ValueError("no message is a training target")
        return self


def read_rows_of(kind: type[AnyRow], path: Path, side: Split = "train") -> Iterator[AnyRow]:
    """Yield the rows of a file, ignoring blank lines.

    Raises InvalidRequest with file and line number for invalid JSON, an invalid field, or a row
    that may not be used for `side`.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = kind.model_validate_json(line)
                except ValidationError as error:
                    raise InvalidRequest(f"{path}:{number}: {explain(error.errors())}") from None
                if row.side != side:
                    raise InvalidRequest(f"{path}:{number}: {_leak(row, side)}")
                yield row
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from None


def _leak(row: Sourced, side: Split) -> str:
    used = f"only to {row.side}" if row.side else "neither to train nor to test"
    made = "made from what is held out" if side == "train" else "not made from what is held out"
    return f"{made}: the row may be used {used}; create the data again by `revelator synthesize`"


TagName = Literal["continue", "terminate", "finish"]


def sentence_words(query: str, infos: Sequence[str]) -> list[str]:
    """Return the words that the filter may keep: those of the query, followed by those of each
    info."""
    return [word for text in (query, *infos) for word in markable_words(text)]


class _Marked(Sourced):
    """A row with a label of 0 or 1 for each of `words`. `question` is the original question."""

    id: str = Field(min_length=1)
    words: list[str]
    labels: list[Literal[0, 1]]

    def _agree(self, cut: list[str]) -> Self:
        if self.words != cut:
            raise ValueError(
                "the text is split into other words than the encoders use; create the data again"
            )
        if len(self.labels) != len(self.words):
            raise ValueError(f"{len(self.labels)} labels for {len(self.words)} words")
        return self


class LabelerRow(_Marked):
    """A passage for a query.

    `query` is the filtered query, `passage` is `Title: body`
    (`service.encoders.inputs.passage_text`), and `words` are the words of the passage. `tag` is
    `finish` if the passage ends the search and `terminate` if it is not useful, in which case no
    word is marked.
    """

    query: str = Field(min_length=1)
    passage: str = Field(min_length=1)
    tag: TagName

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.tag == "terminate" and any(self.labels):
            raise ValueError("a passage tagged terminate has no useful words")
        return self._agree([word.text for word in word_spans(self.passage)])


class FilterRow(_Marked):
    """A query and infos, whose marked words form the next query.

    `words` are the words of the query, followed by those of the infos in order, without the
    markers.
    """

    query: str = Field(min_length=1)
    infos: list[str]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        return self._agree(sentence_words(self.query, self.infos))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
