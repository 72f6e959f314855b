"""HANRAG's compound benchmark (METHODS.md §1.5): a question per document, 2 to 4 joined to one.

Input, a line an entity: `entity`, `documents` (each `id`, `title`, `text`), or a line a passage
(`id`, `title`, `text`): their titles are then the entities, and an entity's documents the passages
of that title and those that name it. An entity's documents are those of its own side of the split.

Output: `id`, `question`, `answer` (joined by ` && `), `parts` (a list of answers each),
`sub_questions`, `entity`, `supporting_passage_ids`, `route`, `split`: rows that
`revelator evaluate` reads. The paper's train, dev and test are cut by entity: what is held out is
the test, of the rest one entity in 7.25 (8,000 to 50,000) is dev.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from math import comb
from typing import Any, Final, NamedTuple

from service.core.domain import Passage
from service.evaluation.datasets import JOINT
from service.strategies.revelator.parsing.salvage import has_word, one_line, unwrap
from service.workshop.facts.splits import normalise
from service.workshop.synthesis.contract import (
    Ask,
    BadReply,
    Dropped,
    Item,
    Outcome,
    Pipeline,
    Row,
    Selection,
    Source,
    Steps,
    ask,
)
from service.workshop.synthesis.pipelines.entities import Entity, read_entities
from service.workshop.synthesis.prompts import Prompts, field
from service.workshop.synthesis.replies import json_object, text_in

PROMPTS: Final = Prompts("compound")
SIZES: Final = (2, 3, 4)  # of a compound question, in parts
PER_ENTITY: Final = 6  # 60,000 questions of 10,000 entities
LONGEST_ANSWER: Final = 8  # words
LONGEST_DOCUMENT: Final = 4_000  # characters
_LABEL: Final = re.compile(r"^\s*(?:compound )?question\s*:", re.IGNORECASE)
SPLITS: Final[dict[str, int]] = {"train": 50_000, "dev": 8_000, "test": 2_000}
JSON_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"Question": {"type": "string"}, "Answer": {"type": "string"}},
    "required": ["Question", "Answer"],
}


class Part(NamedTuple):
    """A simple question on one document."""

    question: str
    answer: str
    document: Passage


def steps(item: Item[Entity], rng: random.Random) -> Steps[Outcome]:
    """Ask about each document, then join random 2 to 4 of the questions, up to six times."""
    entity = item.content
    lost = Counter({"document of the other side": entity.other_side} if entity.other_side else {})
    if len(entity.documents) < 2:
        raise Dropped("fewer than two documents")
    parts = yield from _ask_all(entity, lost)
    if len(parts) < 2:
        raise Dropped("fewer than two questions")
    rows: list[Row] = []
    for chosen in draw(parts, rng):
        try:
            question = yield from ask(_combine(chosen), partial(read_compound, parts=chosen))
        except Dropped as drop:
            lost[drop.reason] += 1
        else:
            name = f"{item.id}#{len(rows)}"
            rows.append(row_of(name, entity.name, question, chosen, split_of(entity)))
    return Outcome(tuple(rows), lost)


def _ask_all(entity: Entity, lost: Counter[str]) -> Steps[list[Part]]:
    parts: dict[str, Part] = {}
    for document in entity.documents:
        fields = {"title": document.title, "document": document.text[:LONGEST_DOCUMENT]}
        prompt = PROMPTS.messages("ask", **{name: field(text) for name, text in fields.items()})
        request = Ask("ask", prompt, max_tokens=160, json_schema=JSON_SCHEMA)
        try:
            part = yield from ask(request, partial(read_part, document=document))
        except Dropped as drop:
            lost[drop.reason] += 1
            continue
        if normalise(part.question) in parts:
            lost["ask: same question again"] += 1
        else:
            parts[normalise(part.question)] = part
    return list(parts.values())


def read_part(text: str, document: Passage) -> Part:
    """A question and a short answer that stands in the document, and not in the question."""
    value = json_object(text, "Question", "Answer")
    question, answer = text_in(value, "Question"), text_in(value, "Answer").rstrip(".")
    if not question.endswith("?"):
        raise BadReply("no question")
    if len(answer.split()) > LONGEST_ANSWER:
        raise BadReply("answer too long")
    if answer.casefold() not in document.text.casefold():
        raise BadReply("answer not in the document")
    if answer.casefold() in question.casefold():
        raise BadReply("answer in the question")
    return Part(question, answer, document)


def read_compound(text: str, parts: Sequence[Part]) -> str:
    """One question without the answers. `no` is a reply like any other: raises Dropped."""
    if normalise(text) == "no":
        raise Dropped("combine: cannot be joined")
    question = one_line(_LABEL.sub("", unwrap(text)))
    if not question.endswith("?") or not has_word(question):
        raise BadReply("no question")
    if any(normalise(question) == normalise(part.question) for part in parts):
        raise BadReply("only one part")
    if any(part.answer.casefold() in question.casefold() for part in parts):
        raise BadReply("answer in the question")
    return question


def draw(parts: Sequence[Part], rng: random.Random) -> list[tuple[Part, ...]]:
    """Different sets of 2 to 4 parts, six or as many as there are."""
    sizes = [size for size in SIZES if size <= len(parts)]
    possible = sum(comb(len(parts), size) for size in sizes)
    if possible <= PER_ENTITY:
        return [chosen for size in sizes for chosen in combinations(parts, size)]
    drawn: dict[frozenset[str], tuple[Part, ...]] = {}
    while len(drawn) < PER_ENTITY:
        chosen = tuple(rng.sample(parts, rng.choice(sizes)))
        drawn.setdefault(frozenset(part.question for part in chosen), chosen)
    return list(drawn.values())


def _combine(parts: Sequence[Part]) -> Ask:
    lines = [f"Simple Question{n}: {field(part.question)}\n" for n, part in enumerate(parts, 1)]
    return Ask("combine", PROMPTS.messages("combine", questions="".join(lines)), max_tokens=160)


def row_of(name: str, entity: str, question: str, parts: Sequence[Part], split: str) -> Row:
    """A compound question; all its documents answer it."""
    documents = [part.document for part in parts]
    titles = tuple(dict.fromkeys(document.title for document in documents))
    ids = tuple(dict.fromkeys(document.passage_id for document in documents))
    fields = {
        "id": name,
        "question": question,
        "answer": JOINT.join(part.answer for part in parts),
        "parts": [[part.answer] for part in parts],
        "sub_questions": [part.question for part in parts],
        "entity": entity,
        "supporting_passage_ids": list(ids),
        "route": "compound",
        "split": split,
    }
    return Row(fields, Source(ids, titles, titles))


def split_of(entity: Entity) -> str:
    """`test` of what is held out, else as `trained_split`."""
    return "test" if entity.held_out else trained_split(entity.name)


def trained_split(name: str) -> str:
    """`train` or `dev`, by a hash of the entity's name."""
    share = SPLITS["dev"] / (SPLITS["train"] + SPLITS["dev"])
    draw = int.from_bytes(hashlib.sha256(f"dev {normalise(name)}".encode()).digest()[:4])
    return "dev" if draw / 2**32 < share else "train"


def select(rows: Sequence[Row], rng: random.Random) -> Selection:
    """At most the paper's number of rows a split, drawn at random, in their order."""
    kept: set[int] = set()
    for split, size in SPLITS.items():
        those = [index for index, row in enumerate(rows) if row.fields["split"] == split]
        kept.update(those if len(those) <= size else rng.sample(those, size))
    lost = {"over the size of the split": len(rows) - len(kept)} if len(kept) < len(rows) else {}
    return Selection([row for index, row in enumerate(rows) if index in kept], lost)


PIPELINE: Final = Pipeline("compound", 1, PROMPTS, read_entities, steps, select)
