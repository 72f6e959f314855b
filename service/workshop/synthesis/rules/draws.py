"""Run a pipeline without a teacher: draw results by its rules, count them and keep them.

Each `begin_…` returns a function that draws one result with the pipeline's own rows. HANRAG's route
`direct` is not covered: questions that need no passage cannot be made from passages, and come from
people instead (METHODS.md §1.5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from service.core.errors import InvalidRequest
from service.prompts.templates import Pair, TemplateSet
from service.workshop.encoders.lessons import Lesson, Negative, filter_rows, labeler_rows
from service.workshop.encoders.rows import HELD_OUT_FORMS, negatives_of
from service.workshop.encoders.rules import FIRST, FORMS, KIN, SECOND, Rules
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.questions import (
    Hop,
    Synthesised,
    as_typed,
    compound_parts,
    hop_of,
    typed_like,
)
from service.workshop.facts.search import Nearest, PassageSearch
from service.workshop.facts.splits import canonical_form
from service.workshop.facts.wordings import join_questions, vary_surface
from service.workshop.synthesis.contract import Dropped, Item, ItemResult, OutputRow, RowOrigin
from service.workshop.synthesis.driver import kept
from service.workshop.synthesis.journal import JournalEntry
from service.workshop.synthesis.pipelines import PipelineName
from service.workshop.synthesis.pipelines.autorag import Trajectory, decisions, messages_of
from service.workshop.synthesis.pipelines.compound import SimpleQuestion, row_of, trained_split
from service.workshop.synthesis.pipelines.hanrag import RevelatorRows
from service.workshop.synthesis.report import Account
from service.workshop.synthesis.rules.corpus import Corpus, Draw, Form, Known, made_of, served
from service.workshop.synthesis.teacher import Spent

TEACHER: Final = "rules"
DRAWS: Final = 1_000  # default of --limit
AGAIN: Final = 0.15  # share of hops that are preceded by a document without the answer
CLOSE: Final = 10
COUNTS: Final = {1: "one fact", 2: "two facts", 3: "three facts", 4: "four facts"}


def begin_autorag(known: Known) -> Draw:
    forms: list[Form] = [form for form in known.forms if form != "compound"]
    if not forms:
        raise Dropped("no facts that a question can be made of")
    templates, nearest = TemplateSet(known.templates), Nearest(known.passages)

    def draw(number: int) -> ItemResult:
        made = known.question(known.rng.choice(forms))
        if any(hop.fact.subject not in hop.fact.passage.text for hop in made.hops):
            raise Dropped("a passage that does not name its subject")
        question = vary_surface(made.question, known.rng)
        talk = Trajectory.begin(templates, question)
        talk.note = f"This needs {COUNTS[len(made.hops)]}."
        for hop in made.hops:
            other = _without_answer(hop, nearest)
            if other and known.rng.random() < AGAIN:
                talk.ask(hop.question, [served(other)])
                talk.note = f"The document does not tell about {hop.fact.subject}."
            talk.ask(hop.question, [served(hop.fact.passage)])
            talk.note = f"{hop.fact.subject}: {hop.answer}."
        talk.conclude(as_typed(made.answer, question))
        return ItemResult((_dialogue_row(question, talk, made_of(known, made), known),))

    return draw


def _dialogue_row(question: str, talk: Trajectory, source: RowOrigin, known: Known) -> OutputRow:
    """Return the row. Raises Dropped if the loop would decide differently from the dialogue."""
    if decisions(question, talk.dialogue.messages) != talk.decided:
        raise Dropped("the loop would decide otherwise")
    ids = tuple(dict.fromkeys((*source.ids, *talk.seen)))
    shown = RowOrigin(ids, tuple(known.titles[name] for name in ids), source.answer_titles)
    messages = messages_of(talk.dialogue)
    return OutputRow({"task": "autorag", "question": question, "messages": messages}, shown)


def _without_answer(hop: Hop, nearest: Nearest) -> Paragraph | None:
    own = hop.fact.passage
    close = nearest.search(hop.question, CLOSE)
    return next((p for p in close if p.title != own.title and hop.answer not in p.text), None)


def begin_compound(known: Known) -> Draw:
    if "compound" not in known.forms:
        raise Dropped("no subject has two facts")

    def draw(number: int) -> ItemResult:
        facts = known.about_one()
        if len(facts) < 2:
            raise Dropped("fewer than two facts")
        hops = [hop_of(fact, known.rng, unseen=known.unseen) for fact in facts]
        parts = [SimpleQuestion(hop.question, hop.answer, served(hop.fact.passage)) for hop in hops]
        question = join_questions([part.question for part in parts], known.rng)
        entity = facts[0].subject
        split = "test" if known.side == "test" else trained_split(entity)
        return ItemResult((row_of(f"rules-{number}", entity, question, parts, split),))

    return draw


BLOCK: Final = 64  # number of items whose queries are embedded together


def begin_efficientrag(known: Known) -> Draw:
    """Return a function that draws items.

    Negatives of training items are searched among passages that may be used for training, those of
    held-out items among all passages.
    """
    test = known.side == "test"
    rules = Rules(known.maker, known.titles, known.rng, made=known.share, links=known.links)
    forms = [form for form in (HELD_OUT_FORMS if test else FORMS) if _possible(form, known)]
    if not forms:
        raise Dropped("no facts that a question can be made of")
    search = PassageSearch([*known.passages, *(known.others if test else ())])
    items = _with_negatives(rules, forms, search)

    def draw(number: int) -> ItemResult:
        item, negatives = next(items)
        if item is None:
            raise Dropped("facts that do not fit")
        return ItemResult(tuple(_label_rows(item, negatives)))

    return draw


def _with_negatives(
    rules: Rules, forms: Sequence[str], search: PassageSearch
) -> Iterator[tuple[Lesson | None, list[Negative]]]:
    """Yield items without end, and None for each draw that gives none."""
    while True:
        block = [rules.item(rules.rng.choice(forms)) for _ in range(BLOCK)]
        queries = sorted({part.query for item in block if item for part in item.parts})
        found = dict(zip(queries, search.top(queries), strict=True))
        for item in block:
            yield item, list(negatives_of(item, found, rules.rng)) if item else []


def _label_rows(item: Lesson, negatives: Sequence[Negative]) -> Iterator[OutputRow]:
    ids = tuple(dict.fromkeys(part.passage.id for part in item.parts))
    made = [("labeler", row) for row in labeler_rows(item, negatives)]
    for kind, row in [*made, *(("filter", row) for row in filter_rows(item))]:
        source = RowOrigin(ids, tuple(row.provenance.titles), (item.answer_title,))
        yield OutputRow(row.model_dump(exclude={"provenance"}), source, kind)


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


def begin_hanrag(known: Known) -> Draw:
    forms: list[Form] = known.forms
    if not forms:
        raise Dropped("no facts that a question can be made of")
    rows = RevelatorRows(TemplateSet(known.templates))
    nearest = Nearest(known.passages)

    def draw(number: int) -> ItemResult:
        made = known.question(known.rng.choice(forms))
        question = vary_surface(made.question, known.rng)
        source = made_of(known, made)
        asked = _asked(made, question, rows, source, known)
        return ItemResult((*asked, *_judged(made, rows, nearest, known)))

    return draw


def _asked(
    made: Synthesised, question: str, rows: RevelatorRows, source: RowOrigin, known: Known
) -> list[OutputRow]:
    if made.route == "compound":
        parts = compound_parts(made, question)
        routed = rows.route(question, "compound", source)
        return [routed, rows.decompose(question, parts, source)]
    if made.route == "single":
        routed = rows.route(question, "single", source)
        return [routed, rows.refine(question, (), question, source)]
    hops = [typed_like(hop, question) for hop in made.hops]
    pairs = [Pair(hop.question, hop.answer) for hop in hops]
    size = known.rng.randrange(len(hops))
    return [
        rows.route(question, "complex", source),
        *(rows.refine(question, pairs[:n], hop.question, source) for n, hop in enumerate(hops)),
        rows.ending(question, pairs[:size], False, source),
        rows.ending(question, pairs, True, source),
    ]


def _judged(
    made: Synthesised, rows: RevelatorRows, nearest: Nearest, known: Known
) -> list[OutputRow]:
    """Return rows on one hop with its passage, and with the most similar passage without the
    answer.

    They keep the original names.
    """
    hop = known.rng.choice(made.hops)
    fact = hop.fact
    if known.titles[fact.passage.id] != fact.passage.title:
        return []  # exchanged names would reveal which passage is relevant
    return [
        rows.relevance(hop.question, served(fact.passage), True, known.source([fact], [fact])),
        *_irrelevant(hop, rows, nearest, known),
    ]


def _irrelevant(
    hop: Hop, rows: RevelatorRows, nearest: Nearest, known: Known
) -> Sequence[OutputRow]:
    own = hop.fact.passage
    for passage in nearest.search(hop.question, CLOSE):
        if passage.title != own.title and hop.answer not in passage.text:
            source = known.source([hop.fact], [hop.fact])
            with_it = RowOrigin(
                (*source.ids, passage.id), (*source.titles, passage.title), source.answer_titles
            )
            return [rows.relevance(hop.question, served(passage), False, with_it)]
    return []


RULES: Final[dict[PipelineName, Callable[[Known], Draw]]] = {
    "autorag": begin_autorag,
    "compound": begin_compound,
    "efficientrag": begin_efficientrag,
    "hanrag": begin_hanrag,
}


def draw_all(name: PipelineName, corpus: Corpus, size: int | None) -> Account:
    """Draw `size` times, without repeating a question.

    Raises InvalidRequest if the rules of `name` cannot create anything from the corpus.
    """
    draw = _begin(name, corpus)
    asked: set[str] = set()
    items = [Item(f"rules-{number}", None, RowOrigin()) for number in range(size or DRAWS)]
    records: dict[str, JournalEntry] = {}
    for number, item in enumerate(items):
        try:
            outcome = _new(draw(number), asked)
            records[item.id] = kept(item, outcome, corpus.known.side, Spent())
        except Dropped as drop:
            records[item.id] = JournalEntry(item.id, dropped=drop.reason)
    account = Account(items, records, {}, corpus.bad, corpus.counts)
    if not any(record.rows for record in records.values()):
        drops = Counter(record.dropped for record in records.values())
        why = f"none of the {len(items)} attempts produced a row: {dict(drops)}"
        raise _unusable(name, corpus, why)
    return account


def _begin(name: PipelineName, corpus: Corpus) -> Draw:
    if not corpus.known.facts:
        raise _unusable(name, corpus, "no fact was found")
    try:
        draw: Draw = RULES[name](corpus.known)
    except Dropped as drop:
        raise _unusable(name, corpus, drop.reason) from None
    return draw


def _unusable(name: PipelineName, corpus: Corpus, why: str) -> InvalidRequest:
    counts = ", ".join(f"{what} {count}" for what, count in corpus.counts.items())
    return InvalidRequest(
        f"the rules of {name} cannot create rows from this corpus: {why} ({counts}, "
        f"{len(corpus.bad)} invalid lines); use passages in the style of an encyclopedia whose "
        "titles are their subjects, or use a teacher model (--teacher)"
    )


def _new(outcome: ItemResult, asked: set[str]) -> ItemResult:
    question = canonical_form(str(outcome.rows[0].fields["question"]))
    if question in asked:
        raise Dropped("same question again")
    asked.add(question)
    return outcome
