"""EfficientRAG's synthesis (METHODS.md §4.5): rows for the labeler and for the filter.

Input: multi-hop questions with their gold passages (`questions`). Output: `OUTPUT.labeler.jsonl`
and `OUTPUT.filter.jsonl` beside the output's name, as `service.workshop.facts.rows` has them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from service.core.domain import Passage
from service.workshop.encoders import lessons
from service.workshop.encoders.marks import Mark
from service.workshop.facts import corpora
from service.workshop.facts.rows import FilterRow, LabelerRow
from service.workshop.synthesis.contract import (
    Item,
    Outcome,
    Pipeline,
    Row,
    Search,
    Source,
    Steps,
    search,
)
from service.workshop.synthesis.pipelines.efficientrag.decomposing import (
    PROMPTS,
    SubQuestion,
    decompose,
)
from service.workshop.synthesis.pipelines.efficientrag.marking import mark
from service.workshop.synthesis.pipelines.efficientrag.querying import Queries, next_queries
from service.workshop.synthesis.pipelines.efficientrag.questions import MultiHop, read_questions

DEPTH: Final = 10  # of the search for a negative


def steps(item: Item[MultiHop], rng: random.Random) -> Steps[Outcome]:
    """Steps 1 to 6, in order; what fails is left out of the item and counted."""
    question, lost = item.content, Counter[str]()
    parts = yield from decompose(question)
    marks: dict[str, list[Mark]] = {}
    for part in parts:
        marks[part.id] = yield from mark(part, question.style, lost)
    hops = {part.id: _hop("", part, marks[part.id]) for part in parts}
    infos = {name: lessons.info_of(hop) for name, hop in hops.items()}
    queries = yield from next_queries(question, parts, infos, lost)
    negatives: list[lessons.Negative] = []
    for part in parts:
        if part.id in queries.of:
            negatives += yield from _negative(queries.of[part.id], item.source.ids, lost)
    made = _training_item(item, parts, marks, queries)
    return Outcome(tuple(_rows(item, made, negatives)), +lost)


def _hop(query: str, part: SubQuestion, marks: Sequence[Mark], last: str = "") -> lessons.Part:
    return lessons.Part(query, _passage(part.passage), marks, part.id == last)


def _passage(passage: Passage) -> corpora.Passage:
    return corpora.Passage(passage.passage_id, passage.title, passage.text, "")


def _negative(query: str, gold: Sequence[str], lost: Counter[str]) -> Steps[list[lessons.Negative]]:
    """Step 5: the first passage found that is no gold passage of the item."""
    found = yield from search(Search(query, DEPTH))
    others = [passage for passage in found if passage.passage_id not in gold]
    if not others:
        lost["search: no negative"] += 1
    return [lessons.Negative(query, _passage(passage)) for passage in others[:1]]


def _training_item(
    item: Item[MultiHop],
    parts: Sequence[SubQuestion],
    marks: Mapping[str, Sequence[Mark]],
    queries: Queries,
) -> lessons.Lesson:
    last = max(part.id for part in parts)  # the last in string order ends the search
    hops = [
        _hop(queries.of[part.id], part, marks[part.id], last)
        for part in parts
        if part.id in queries.of
    ]
    return lessons.Lesson(
        item.id,
        item.content.form,
        item.content.question,
        hops,
        queries.rewrites,
        item.source.titles,
        item.source.answer_titles[0],
        written=True,
    )


def _rows(
    item: Item[MultiHop], made: lessons.Lesson, negatives: Sequence[lessons.Negative]
) -> list[Row]:
    labeler = [_row(row, item, "labeler") for row in lessons.labeler_rows(made, negatives)]
    return labeler + [_row(row, item, "filter") for row in lessons.filter_rows(made)]


def _row(row: LabelerRow | FilterRow, item: Item[MultiHop], kind: str) -> Row:
    titles = tuple(row.provenance.titles)
    source = Source(item.source.ids, titles, item.source.answer_titles, item.source.question)
    return Row(row.model_dump(exclude={"provenance"}), source, kind)


PIPELINE: Final = Pipeline(
    "efficientrag",
    1,
    PROMPTS,
    read_questions,
    steps,
    searches=True,
    kinds=("labeler", "filter"),
)
