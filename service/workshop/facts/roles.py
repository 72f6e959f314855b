"""Turns of the roles that several syntheses share: a compound's parts, Auto-RAG's dialogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.prompts.quoting import quote
from service.workshop.facts.questions import Hop, Synthesised


class Turn(NamedTuple):
    """What a user asks and what the model should write back."""

    user: str
    assistant: str


def typed_like(hop: Hop, question: str) -> Hop:
    """The hop with its subject in small letters where the question was typed so."""
    subject = hop.fact.subject
    if subject not in question and subject.lower() in question:
        return Hop(hop.question.replace(subject, subject.lower()), hop.answer, hop.fact)
    return hop


def as_typed(answer: str, question: str) -> str:
    """The answer in small letters where the question names it so."""
    return answer.lower() if answer not in question and answer.lower() in question else answer


def compound_parts(made: Synthesised, question: str) -> list[str]:
    """The parts of a compound question, in small letters where the question was typed so."""
    parts = [f"{hop.question.rstrip('? ')}?" for hop in made.hops]
    return [part.lower() if question == question.lower() else _capital(part) for part in parts]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def document_turn(number: int, texts: Sequence[str]) -> str:
    """What the user says in Auto-RAG: up to two passages, without titles."""
    return f"Retrieved Document_{number}: {quote(' '.join(texts))}"


def autorag_turns(
    made: Synthesised,
    question: str,
    documents: Sequence[tuple[int, Sequence[str]]],
    repeats: Sequence[str],
) -> list[Turn]:
    """A whole dialogue; a document is (the hop it answers, or -1, and its texts).

    `repeats` are the queries asked again after a document that does not help.
    """
    hops = [typed_like(hop, question) for hop in made.hops]
    needs = {1: "This needs one fact."}.get(len(hops), f"This needs {len(hops)} facts.")
    reply = f"Analysis: {needs}\n\nInitial Query: {quote(hops[0].question)}"
    turns = [Turn(f"Question: {quote(question)}", reply)]
    found, again = 0, iter(repeats)
    for number, (hop, texts) in enumerate(documents, 1):
        if hop < 0:
            said, query = "The documents do not tell.", next(again)
        else:
            found = hop + 1
            said = f"{quote(hops[hop].fact.subject)}: {quote(hops[hop].answer)}."
            query = hops[found].question if found < len(hops) else ""
        tail = f"Refined Query: {quote(query)}" if query else f"Final Answer: {quote(made.answer)}"
        user = document_turn(number, texts)
        turns.append(Turn(user, f"Intermediate Answer_{number}: {said}\n\n{tail}"))
    return turns
