"""Rows of the labeler and the filter, by the rules that make the shipped ones' data."""

from __future__ import annotations

from service.synthesis.contract import Dropped, Outcome, Row, Source
from service.synthesis.rules.known import Draw, Known
from service.training.labelling.items import filter_rows, labeler_rows
from service.training.labelling.making import HELD_OUT_FORMS, negatives_of
from service.training.labelling.negatives import Search
from service.training.labelling.rules import FIRST, FORMS, KIN, SECOND, Rules


def begin(known: Known) -> Draw:
    """Training items are searched among what may train, held-out ones among all passages."""
    test = known.side == "test"
    rules = Rules(known.maker, known.titles, known.rng, made=known.share)
    forms = [form for form in (HELD_OUT_FORMS if test else FORMS) if _possible(form, known)]
    if not forms:
        raise Dropped("no facts that a question can be made of")
    search = Search([*known.passages, *(known.others if test else ())])

    def draw(number: int) -> Outcome:
        item = rules.item(known.rng.choice(forms))
        if item is None:
            raise Dropped("facts that do not fit")
        queries = list(dict.fromkeys(part.query for part in item.parts))
        found = dict(zip(queries, search.top(queries), strict=True))
        negatives = list(negatives_of(item, found, known.rng))
        ids = [part.passage.id for part in item.parts]
        made: list[Row] = []
        for kind, rows in (
            ("labeler", labeler_rows(item, negatives)),
            ("filter", filter_rows(item)),
        ):
            for row in rows:
                titles = tuple(row.provenance.titles)
                source = Source(tuple(dict.fromkeys(ids)), titles, (item.answer_title,))
                made.append(Row(row.model_dump(exclude={"provenance"}), source, kind))
        return Outcome(tuple(made))

    return draw


def _possible(form: str, known: Known) -> bool:
    kinds = known.maker.by_kind.keys()
    if form == "single":
        return bool(known.facts)
    if form == "comparison":
        return bool(known.comparable)
    if known.share == 0.0:
        return form == "bridge" and bool(known.maker.links)
    if form == "directed":
        return "director" in kinds and bool(kinds & {"birth_date", "death_date"})
    between = form == "bridge" or bool(kinds & set(KIN))
    return bool(kinds & set(FIRST)) and bool(kinds & set(SECOND)) and between
