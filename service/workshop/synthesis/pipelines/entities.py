"""Entities and the documents about them, given as such or gathered from passages."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.core.domain import Passage
from service.workshop.facts.splits import is_held_out
from service.workshop.synthesis.contract import BadLine, Item, Lines, Reading, Source
from service.workshop.synthesis.reading import list_of, passage_of, text_of

DOCUMENTS: Final = 10  # of one entity (METHODS.md §1.5)
SHORTEST_NAME: Final = 4  # characters of an entity that is looked for in texts
_BRACKET = re.compile(r"\s*\([^()]*\)\s*$")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Entity:
    """A name and at most ten documents of its side of the split. `other_side`: how many were
    left out because they are of the other."""

    name: str
    documents: tuple[Passage, ...]
    other_side: int = 0

    @property
    def held_out(self) -> bool:
        return is_held_out(self.name)


def read_entities(lines: Lines, rng: random.Random) -> Reading[Entity]:
    """Entities as they are given, then those of the passages, in random order."""
    named: dict[str, list[Passage]] = {}
    passages: dict[str, Passage] = {}
    bad: list[tuple[int, str]] = []
    for number, row in lines:
        try:
            if "documents" in row:
                name, documents = _given(row)
                if name in named:
                    raise BadLine("entity of an earlier line")
                named[name] = documents
            else:
                passage = passage_of(row)
                passages.setdefault(passage.passage_id, passage)
        except BadLine as error:
            bad.append((number, error.reason))
    gathered = list(gather(passages.values()).items())
    rng.shuffle(gathered)
    entities = {**dict(gathered), **named}
    return Reading([_item(name, documents) for name, documents in entities.items()], bad)


def _given(row: Mapping[str, Any]) -> tuple[str, list[Passage]]:
    return text_of(row, "entity"), [passage_of(document) for document in list_of(row, "documents")]


def _item(name: str, documents: Sequence[Passage]) -> Item[Entity]:
    held_out = is_held_out(name)
    own = [d for d in documents if is_held_out(d.title) is held_out][:DOCUMENTS]
    others = sum(is_held_out(document.title) is not held_out for document in documents)
    titles = tuple(dict.fromkeys([name, *(document.title for document in own)]))
    ids = tuple(document.passage_id for document in own)
    return Item(name, Entity(name, tuple(own), others), Source(ids, titles, titles))


def gather(passages: Iterable[Passage]) -> dict[str, list[Passage]]:
    """Each title without its bracket, with the passages of that title and those that name it."""
    found: dict[str, list[Passage]] = {}
    every = list(passages)
    for passage in every:
        found.setdefault(_BRACKET.sub("", passage.title).strip() or passage.title, []).append(
            passage
        )
    by_first: dict[str, list[str]] = {}
    for name in found:
        first = _WORD.search(name)
        if first and len(name) >= SHORTEST_NAME:
            by_first.setdefault(first.group(), []).append(name)
    for passage in every:
        for name in _named(passage.text, by_first):
            if passage not in found[name]:
                found[name].append(passage)
    return found


def _named(text: str, by_first: Mapping[str, Sequence[str]]) -> list[str]:
    """The names that stand in `text` as whole words, each once."""
    names: dict[str, None] = {}
    for word in _WORD.finditer(text):
        for name in by_first.get(word.group(), ()):
            end = word.start() + len(name)
            if text.startswith(name, word.start()) and not text[end : end + 1].isalnum():
                names[name] = None
    return list(names)
