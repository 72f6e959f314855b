"""The Revelator's five tasks by rules. Passages know no question that needs none: of the routes
`direct` is not among them, its questions come from people (METHODS.md §1.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.prompts.templates import Pair, TemplateSet
from service.workshop.facts.questions import Hop, Synthesised
from service.workshop.facts.roles import compound_parts, typed_like
from service.workshop.facts.search import Nearest
from service.workshop.facts.wordings import vary_surface
from service.workshop.synthesis.contract import Dropped, Outcome, Row, Source
from service.workshop.synthesis.pipelines.hanrag.rows import Rows
from service.workshop.synthesis.rules.known import Draw, Form, Known, made_of, served

CLOSE: Final = 10  # passages among which one is found that does not answer


def begin(known: Known) -> Draw:
    forms: list[Form] = known.forms
    if not forms:
        raise Dropped("no facts that a question can be made of")
    rows = Rows(TemplateSet(known.templates))
    nearest = Nearest(known.passages)

    def draw(number: int) -> Outcome:
        made = known.question(known.rng.choice(forms))
        question = vary_surface(made.question, known.rng)
        source = made_of(known, made)
        asked = _asked(made, question, rows, source, known)
        return Outcome((*asked, *_judged(made, rows, nearest, known)))

    return draw


def _asked(made: Synthesised, question: str, rows: Rows, source: Source, known: Known) -> list[Row]:
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


def _judged(made: Synthesised, rows: Rows, nearest: Nearest, known: Known) -> list[Row]:
    """One hop with its passage, and with the closest that has not the answer, in real names."""
    hop = known.rng.choice(made.hops)
    fact = hop.fact
    if known.titles[fact.passage.id] != fact.passage.title:
        return []  # the look of made-up names would tell the passages apart
    return [
        rows.relevance(hop.question, served(fact.passage), True, known.source([fact], [fact])),
        *_irrelevant(hop, rows, nearest, known),
    ]


def _irrelevant(hop: Hop, rows: Rows, nearest: Nearest, known: Known) -> Sequence[Row]:
    own = hop.fact.passage
    for passage in nearest.search(hop.question, CLOSE):
        if passage.title != own.title and hop.answer not in passage.text:
            source = known.source([hop.fact], [hop.fact])
            with_it = Source(
                (*source.ids, passage.id), (*source.titles, passage.title), source.answer_titles
            )
            return [rows.relevance(hop.question, served(passage), False, with_it)]
    return []
