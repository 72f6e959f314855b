"""The rows of `train labeler` and `train filter` (METHODS.md §4.5, step 6), as JSON Lines.

`synthesize efficientrag` writes them, by rules or by a teacher. Words are those of
`service.encoders.words`, as the encoders cut them, so that a row can be read without its maker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from service.encoders.inputs import markable_words
from service.encoders.words import words
from service.workshop.facts.rows import Sourced

TagName = Literal["continue", "terminate", "finish"]


def sentence_words(query: str, infos: Sequence[str]) -> list[str]:
    """The words that the filter may keep: those of the query, then those of each info."""
    return [word for text in (query, *infos) for word in markable_words(text)]


class _Marked(Sourced):
    """`labels` are 0 or 1, one per word of `words`; `question` is the original one."""

    id: str = Field(min_length=1)
    words: list[str]
    labels: list[Literal[0, 1]]

    def _agree(self, cut: list[str]) -> Self:
        if self.words != cut:
            raise ValueError("the words are not those the encoders cut; make the data anew")
        if len(self.labels) != len(self.words):
            raise ValueError(f"{len(self.labels)} labels for {len(self.words)} words")
        return self


class LabelerRow(_Marked):
    """A passage in view of a query. `query` is the filtered query, `passage` is `Title: body`
    (`service.encoders.inputs.passage_text`), `words` the passage's. A passage that ends the
    search or does not serve it has its tag, and where it does not serve no word is marked."""

    query: str = Field(min_length=1)
    passage: str = Field(min_length=1)
    tag: TagName

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.tag == "terminate" and any(self.labels):
            raise ValueError("a passage tagged terminate has no useful words")
        return self._agree([word.text for word in words(self.passage)])


class FilterRow(_Marked):
    """A query and what was marked, of which the marked words are the next query. `words` are the
    query's, then the infos', in order, without the markers."""

    query: str = Field(min_length=1)
    infos: list[str]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        return self._agree(sentence_words(self.query, self.infos))
