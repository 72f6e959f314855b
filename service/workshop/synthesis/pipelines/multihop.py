"""Multi-hop questions with their gold passages, in the formats that `published` reads.

MuSiQue's and our own have hops; those of 2WikiMultihopQA and HotpotQA have `context` and `type`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from service.core.domain import Passage
from service.workshop.synthesis.contract import (
    BadLine,
    BadLines,
    Item,
    Lines,
    items_of,
    list_of,
    text_of,
)
from service.workshop.synthesis.pipelines.published import ChainedQuestion, filled, read_item

Style = Literal["musique", "2wiki", "hotpotqa"]
MUSIQUE_FORMS: Final = ("2hop", "3hop1", "3hop2", "4hop1", "4hop2", "4hop3")
# The number of facts of a 2Wiki question. Questions with another number are left out (METHODS.md
# §4.5).
FACTS: Final = {"comparison": 2, "compositional": 2, "inference": 2, "bridge_comparison": 4}
HOTPOTQA_FORMS: Final = ("comparison", "bridge")


@dataclass(frozen=True, slots=True)
class MultiHop:
    """A question and its gold passages.

    MuSiQue also has sub-questions, in the order of the passages, and 2Wiki has relations (`entity1
    - relation - entity2`).
    """

    question: str
    answer: str
    style: Style
    form: str
    passages: tuple[Passage, ...]
    sub_questions: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()


def read_questions(lines: Lines, rng: random.Random, bad: BadLines) -> list[Item[MultiHop]]:
    return items_of(lines, _item, bad)


def _item(row: Mapping[str, Any], default_id: str) -> Item[MultiHop]:
    item = read_item(row, default_id)
    if "context" in row:
        content = _context(row, item.content)
    else:
        form = str(row.get("form") or item.id.split("__")[0])
        content = _hops(form, item.content)
    if len(content.passages) < 2:
        raise BadLine("fewer than two gold passages")
    return Item(item.id, content, item.source, item.question)


def _hops(form: str, asked: ChainedQuestion) -> MultiHop:
    passages = tuple(hop.passage for hop in asked.hops if hop.passage)
    if len(passages) < len(asked.hops):
        raise BadLine("a hop without its passage")
    if form not in MUSIQUE_FORMS:
        form = {2: "2hop", 3: "3hop1", 4: "4hop1"}.get(len(passages), "")
    if not form:
        raise BadLine("neither two, three nor four hops")
    answers = [hop.answer for hop in asked.hops]
    parts = tuple(filled(hop.question, answers) for hop in asked.hops)
    return MultiHop(asked.question, asked.answers[0], "musique", form, passages, parts)


def _context(row: Mapping[str, Any], asked: ChainedQuestion) -> MultiHop:
    form, answer, passages = text_of(row, "type"), asked.answers[0], asked.supporting
    if "evidences" not in row:
        if form not in HOTPOTQA_FORMS:
            raise BadLine("unknown `type`")
        return MultiHop(asked.question, answer, "hotpotqa", form, passages)
    if form not in FACTS:
        raise BadLine("unknown `type`")
    relations = tuple(" - ".join(map(str, fact)) for fact in list_of(row, "evidences"))
    if len(relations) != FACTS[form]:
        raise BadLine("another number of facts than its type has")
    return MultiHop(asked.question, answer, "2wiki", form, passages, relations=relations)
