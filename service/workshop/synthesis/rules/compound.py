"""Compound questions on one subject, by rules, in their real names."""

from __future__ import annotations

from service.workshop.facts.questions import hop_of
from service.workshop.facts.wordings import join_questions
from service.workshop.synthesis.contract import Dropped, Outcome
from service.workshop.synthesis.pipelines.compound import Part, row_of, trained_split
from service.workshop.synthesis.rules.known import Draw, Known, served


def begin(known: Known) -> Draw:
    if "compound" not in known.forms:
        raise Dropped("no subject has two facts")

    def draw(number: int) -> Outcome:
        facts = known.about_one()
        if len(facts) < 2:
            raise Dropped("fewer than two facts")
        hops = [hop_of(fact, known.rng, unseen=known.unseen) for fact in facts]
        parts = [Part(hop.question, hop.answer, served(hop.fact.passage)) for hop in hops]
        question = join_questions([part.question for part in parts], known.rng)
        entity = facts[0].subject
        split = "test" if known.side == "test" else trained_split(entity)
        return Outcome((row_of(f"rules-{number}", entity, question, parts, split),))

    return draw
