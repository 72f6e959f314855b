"""Rows of the labeler and the filter, by the rules that make the shipped ones' data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from service.workshop.encoders.lessons import Lesson, Negative, filter_rows, labeler_rows
from service.workshop.encoders.rows import HELD_OUT_FORMS, negatives_of
from service.workshop.encoders.rules import FIRST, FORMS, KIN, SECOND, Rules
from service.workshop.facts.search import Search
from service.workshop.synthesis.contract import Dropped, Outcome, Row, Source
from service.workshop.synthesis.rules.known import Draw, Known

BLOCK: Final = 64  # items whose queries are embedded together


def begin(known: Known) -> Draw:
    """Training items are searched among what may train, held-out ones among all passages."""
    test = known.side == "test"
    rules = Rules(known.maker, known.titles, known.rng, made=known.share, links=known.links)
    forms = [form for form in (HELD_OUT_FORMS if test else FORMS) if _possible(form, known)]
    if not forms:
        raise Dropped("no facts that a question can be made of")
    search = Search([*known.passages, *(known.others if test else ())])
    items = _with_negatives(rules, forms, search)

    def draw(number: int) -> Outcome:
        item, negatives = next(items)
        if item is None:
            raise Dropped("facts that do not fit")
        return Outcome(tuple(_rows(item, negatives)))

    return draw


def _with_negatives(
    rules: Rules, forms: Sequence[str], search: Search
) -> Iterator[tuple[Lesson | None, list[Negative]]]:
    """Items without end; None for what was drawn and makes none."""
    while True:
        block = [rules.item(rules.rng.choice(forms)) for _ in range(BLOCK)]
        queries = sorted({part.query for item in block if item for part in item.parts})
        found = dict(zip(queries, search.top(queries), strict=True))
        for item in block:
            yield item, list(negatives_of(item, found, rules.rng)) if item else []


def _rows(item: Lesson, negatives: Sequence[Negative]) -> Iterator[Row]:
    ids = tuple(dict.fromkeys(part.passage.id for part in item.parts))
    made = [("labeler", row) for row in labeler_rows(item, negatives)]
    for kind, row in [*made, *(("filter", row) for row in filter_rows(item))]:
        source = Source(ids, tuple(row.provenance.titles), (item.answer_title,))
        yield Row(row.model_dump(exclude={"provenance"}), source, kind)


def _possible(form: str, known: Known) -> bool:
    kinds = known.maker.by_kind.keys()
    if form == "single":
        return bool(known.facts)
    if form == "comparison":
        return bool(known.comparable)
    if known.share == 0.0:
        return form == "bridge" and bool(known.links)
    if form == "directed":
        return "director" in kinds and bool(kinds & {"birth_date", "death_date"})
    between = form == "bridge" or bool(kinds & set(KIN))
    return bool(kinds & set(FIRST)) and bool(kinds & set(SECOND)) and between
