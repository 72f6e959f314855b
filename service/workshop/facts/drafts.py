"""What DRAGIN's drafts say (METHODS.md §3.3): a fact a sentence, then ``So the answer is X.``"""

from __future__ import annotations

from service.prompts.quoting import quote
from service.workshop.facts.questions import Hop
from service.workshop.facts.wordings import STATEMENTS


def statement(hop: Hop) -> str:
    """The hop's fact as a sentence: ``Heat was directed by Michael Mann.``"""
    shape = STATEMENTS[hop.fact.kind]
    if hop.answer.isdigit():
        shape = shape.replace(" on {a}", " in {a}")
    return shape.format(s=quote(hop.fact.subject), a=quote(hop.answer))


def conclusion(answer: str) -> str:
    return f"So the answer is {quote(answer)}."
