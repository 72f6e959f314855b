"""HANRAG's compound benchmark (METHODS.md §1.5): one question per document, two to four of them
joined.

Input: a line per entity with `entity` and `documents` (each `id`, `title` and `text`), or a line
per passage (`id`, `title` and `text`). For passages, the entities are their titles, and the
documents of an entity are the passages with that title and those that contain it. Only documents on
the entity's own side of the split are used.

Output: rows that `revelator evaluate` reads, with `id`, `question`, `answer` (joined by ` && `),
`parts` (a list of answers each), `sub_questions`, `entity`, `supporting_passage_ids`, `route` and
`split`. As in the paper, train, dev and test are split by entity: held-out entities are the test
set, and one in 7.25 of the others (8,000 to 50,000) is in the dev set.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb
from typing import Any, Final

from service.core.domain import Passage
from service.evaluation.datasets import JOINT
from service.strategies.reading.text import has_word, one_line, unwrap
from service.workshop.rows import RowOrigin
from service.workshop.splits import canonical_form, is_held_out
from service.workshop.synthesis.contract import (
    AskTeacher,
    BadLine,
    BadLines,
    Dropped,
    Item,
    Lines,
    OutputRow,
    Pipeline,
    Prompts,
    Selection,
    Session,
    UnusableReply,
    field,
    json_object,
    list_of,
    passage_of,
    read_each,
    text_in,
    text_of,
)
from service.workshop.synthesis.pipelines.published import Link

PROMPTS: Final = Prompts("compound")
SIZES: Final = (2, 3, 4)  # numbers of parts of a compound question
PER_ENTITY: Final = 6  # the paper has 60,000 questions about 10,000 entities
LONGEST_ANSWER: Final = 8  # in words
LONGEST_DOCUMENT: Final = 4_000  # in characters
_LABEL: Final = re.compile(r"^\s*(?:compound )?question\s*:", re.IGNORECASE)
SPLITS: Final[dict[str, int]] = {"train": 50_000, "dev": 8_000, "test": 2_000}
JSON_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"Question": {"type": "string"}, "Answer": {"type": "string"}},
    "required": ["Question", "Answer"],
}


async def work(item: Item[Entity], session: Session) -> list[OutputRow]:
    """Write a question about each document, then join two to four random questions, up to six
    times."""
    entity = item.content
    session.lost["document of the other side"] += entity.other_side
    if len(entity.documents) < 2:
        raise Dropped("fewer than two documents")
    parts = await _ask_all(entity, session)
    if len(parts) < 2:
        raise Dropped("fewer than two questions")
    rows: list[OutputRow] = []
    for chosen in draw(parts, session.rng):
        with session.leaving_out():
            question = await session.ask(_combine(chosen), partial(read_compound, parts=chosen))
            name = f"{item.id}#{len(rows)}"
            rows.append(row_of(name, entity.name, question, chosen, split_of(entity)))
    return rows


async def _ask_all(entity: Entity, session: Session) -> list[Link]:
    parts: dict[str, Link] = {}
    for document in entity.documents:
        fields = {"title": document.title, "document": document.text[:LONGEST_DOCUMENT]}
        prompt = PROMPTS.messages("ask", **{name: field(text) for name, text in fields.items()})
        request = AskTeacher(prompt, stage="ask", max_tokens=160, json_schema=JSON_SCHEMA)
        with session.leaving_out():
            part = await session.ask(request, partial(read_part, document=document))
            if canonical_form(part.question) in parts:
                raise Dropped("ask: same question again")
            parts[canonical_form(part.question)] = part
    return list(parts.values())


def read_part(text: str, document: Passage) -> Link:
    """Return a question with a short answer that the document contains and the question does
    not."""
    value = json_object(text, "Question", "Answer")
    question, answer = text_in(value, "Question"), text_in(value, "Answer").rstrip(".")
    if not question.endswith("?"):
        raise UnusableReply("no question")
    if len(answer.split()) > LONGEST_ANSWER:
        raise UnusableReply("answer too long")
    if answer.casefold() not in document.text.casefold():
        raise UnusableReply("answer not in the document")
    if answer.casefold() in question.casefold():
        raise UnusableReply("answer in the question")
    return Link(question, answer, document)


def read_compound(text: str, parts: Sequence[Link]) -> str:
    """Return one question that contains none of the answers. Raises Dropped if the teacher replied
    `no`."""
    if canonical_form(text) == "no":
        raise Dropped("combine: cannot be joined")
    question = one_line(_LABEL.sub("", unwrap(text)))
    if not question.endswith("?") or not has_word(question):
        raise UnusableReply("no question")
    if any(canonical_form(question) == canonical_form(part.question) for part in parts):
        raise UnusableReply("only one part")
    if any(part.answer.casefold() in question.casefold() for part in parts):
        raise UnusableReply("answer in the question")
    return question


def draw(parts: Sequence[Link], rng: random.Random) -> list[tuple[Link, ...]]:
    """Return up to six different sets of two to four parts."""
    sizes = [size for size in SIZES if size <= len(parts)]
    possible = sum(comb(len(parts), size) for size in sizes)
    if possible <= PER_ENTITY:
        return [chosen for size in sizes for chosen in combinations(parts, size)]
    drawn: dict[frozenset[str], tuple[Link, ...]] = {}
    while len(drawn) < PER_ENTITY:
        chosen = tuple(rng.sample(parts, rng.choice(sizes)))
        drawn.setdefault(frozenset(part.question for part in chosen), chosen)
    return list(drawn.values())


def _combine(parts: Sequence[Link]) -> AskTeacher:
    lines = [f"Simple Question{n}: {field(part.question)}\n" for n, part in enumerate(parts, 1)]
    prompt = PROMPTS.messages("combine", questions="".join(lines))
    return AskTeacher(prompt, stage="combine", max_tokens=160)


def row_of(name: str, entity: str, question: str, parts: Sequence[Link], split: str) -> OutputRow:
    """Return a row with a compound question. All documents of its parts are gold passages."""
    documents = [part.passage for part in parts if part.passage]
    source = RowOrigin().beside(documents)
    fields = {
        "id": name,
        "question": question,
        "answer": JOINT.join(part.answer for part in parts),
        "parts": [[part.answer] for part in parts],
        "sub_questions": [part.question for part in parts],
        "entity": entity,
        "supporting_passage_ids": source.sources,
        "route": "compound",
        "split": split,
    }
    return OutputRow(fields, source.model_copy(update={"answer_titles": source.titles}))


def split_of(entity: Entity) -> str:
    """Return `test` for a held-out entity, else `train` or `dev`, by a hash of its name."""
    if is_held_out(entity.name):
        return "test"
    share = SPLITS["dev"] / (SPLITS["train"] + SPLITS["dev"])
    named = f"dev {canonical_form(entity.name)}".encode()
    draw = int.from_bytes(hashlib.sha256(named).digest()[:4])
    return "dev" if draw / 2**32 < share else "train"


def select(rows: Sequence[OutputRow], rng: random.Random) -> Selection:
    """Return at most as many rows per split as the paper has, chosen at random, in their original
    order."""
    kept: set[int] = set()
    for split, size in SPLITS.items():
        those = [index for index, row in enumerate(rows) if row.fields["split"] == split]
        kept.update(those if len(those) <= size else rng.sample(those, size))
    lost = {"over the size of the split": len(rows) - len(kept)} if len(kept) < len(rows) else {}
    return [row for index, row in enumerate(rows) if index in kept], lost


DOCUMENTS: Final = 10  # most documents of an entity (METHODS.md §1.5)
SHORTEST_NAME: Final = 4  # characters of a name that is searched for in texts
_BRACKET = re.compile(r"\s*\([^()]*\)\s*$")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Entity:
    """A name and at most ten documents on its side of the split.

    `other_side` is the number of documents that were excluded because they belong to the other
    side.
    """

    name: str
    documents: tuple[Passage, ...]
    other_side: int = 0


def read_entities(lines: Lines, rng: random.Random, bad: BadLines) -> list[Item[Entity]]:
    """Return the entities of the input, followed by those made from passages in random order."""
    named: dict[str, list[Passage]] = {}
    passages: dict[str, Passage] = {}

    def read(row: Mapping[str, Any], _: str) -> None:
        if "documents" not in row:
            passage = passage_of(row)
            passages.setdefault(passage.passage_id, passage)
            return
        name, documents = text_of(row, "entity"), list_of(row, "documents")
        if name in named:
            raise BadLine("entity of an earlier line")
        named[name] = [passage_of(document) for document in documents]

    read_each(lines, read, bad)
    gathered = list(gather(passages.values()).items())
    rng.shuffle(gathered)
    entities = {**dict(gathered), **named}
    return [_entity_item(name, documents) for name, documents in entities.items()]


def _entity_item(name: str, documents: Sequence[Passage]) -> Item[Entity]:
    held_out = is_held_out(name)
    chosen = [d for d in documents if is_held_out(d.title) is held_out][:DOCUMENTS]
    others = sum(is_held_out(document.title) is not held_out for document in documents)
    source = RowOrigin(titles=[name]).beside(chosen)
    source = source.model_copy(update={"answer_titles": source.titles})
    return Item(name, Entity(name, tuple(chosen), others), source)


def gather(passages: Iterable[Passage]) -> dict[str, list[Passage]]:
    """Return each title without its parenthesised suffix, with the passages of that title and those
    that contain it."""
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
    """Return the distinct names that occur in `text` as whole words."""
    names: dict[str, None] = {}
    for word in _WORD.finditer(text):
        for name in by_first.get(word.group(), ()):
            end = word.start() + len(name)
            if text.startswith(name, word.start()) and not text[end : end + 1].isalnum():
                names[name] = None
    return list(names)


PIPELINE: Final = Pipeline("compound", 1, PROMPTS, read_entities, work, select)
