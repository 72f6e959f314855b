"""What DRAGIN's drafts say (METHODS.md §3.3): a fact a sentence, then ``So the answer is X.``"""

from __future__ import annotations

from service.prompts.quoting import quote
from service.workshop.facts.synthesis import Hop

# What a fact says as a sentence: the asked one first, what is to be found last.
STATEMENTS = {
    "birth_date": "{s} was born on {a}.", "death_date": "{s} died on {a}.",
    "birth_place": "{s} was born in {a}.", "death_place": "{s} died in {a}.",
    "nationality": "The nationality of {s} is {a}.", "occupation": "{s} worked as {a}.",
    "father": "The father of {s} is {a}.", "mother": "The mother of {s} is {a}.",
    "spouse": "The spouse of {s} is {a}.", "child": "The child of {s} is {a}.",
    "sibling": "The sibling of {s} is {a}.", "school": "{s} studied at {a}.",
    "team": "{s} played for {a}.", "position": "{s} plays as {a}.",
    "director": "{s} was directed by {a}.", "film_year": "{s} was released in {a}.",
    "film_country": "The country of {s} is {a}.", "genre": "The genre of {s} is {a}.",
    "starring": "{s} stars {a}.", "producer": "{s} was produced by {a}.",
    "writer": "{s} was written by {a}.", "composer": "{s} was composed by {a}.",
    "performer": "{s} was performed by {a}.", "author": "{s} was written by {a}.",
    "publisher": "{s} was published by {a}.", "label": "{s} was released by {a}.",
    "release_date": "{s} was released on {a}.", "location": "{s} is located in {a}.",
    "founded": "{s} was founded in {a}.", "founder": "{s} was founded by {a}.",
    "headquarters": "{s} is based in {a}.", "owner": "{s} is owned by {a}.",
    "population": "The population of {s} is {a}.", "capital_of": "{s} is the capital of {a}.",
    "known_for": "{s} is known for {a}.",
}  # fmt: skip


def statement(hop: Hop) -> str:
    """The hop's fact as a sentence: ``Heat was directed by Michael Mann.``"""
    shape = STATEMENTS[hop.fact.kind]
    if hop.answer.isdigit():
        shape = shape.replace(" on {a}", " in {a}")
    return shape.format(s=quote(hop.fact.subject), a=quote(hop.answer))


def conclusion(answer: str) -> str:
    return f"So the answer is {quote(answer)}."
