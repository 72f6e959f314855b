"""One question per relation of 2WikiMultihopQA's evidence (METHODS.md §1.5), in our wording."""

from __future__ import annotations

from typing import Final

_QUESTIONS: Final = {
    "author": "Who is the author of {s}?",
    "award received": "Which award did {s} receive?",
    "cause of death": "What did {s} die of?",
    "child": "Who is the child of {s}?",
    "composer": "Who composed the music of {s}?",
    "country": "In which country is {s}?",
    "country of citizenship": "Of which country is {s} a citizen?",
    "country of origin": "From which country does {s} come?",
    "creator": "Who created {s}?",
    "date of birth": "When was {s} born?",
    "date of death": "When did {s} die?",
    "director": "Who directed {s}?",
    "doctoral advisor": "Who was the doctoral advisor of {s}?",
    "editor": "Who is the editor of {s}?",
    "educated at": "Where was {s} educated?",
    "employer": "Who employed {s}?",
    "family": "To which family does {s} belong?",
    "father": "Who is the father of {s}?",
    "founded by": "Who founded {s}?",
    "has part": "What is a part of {s}?",
    "inception": "When was {s} founded?",
    "manufacturer": "Who manufactured {s}?",
    "mother": "Who is the mother of {s}?",
    "occupation": "What is the occupation of {s}?",
    "performer": "Who performed {s}?",
    "place of birth": "Where was {s} born?",
    "place of burial": "Where is {s} buried?",
    "place of death": "Where did {s} die?",
    "place of detention": "Where was {s} detained?",
    "presenter": "Who presented {s}?",
    "producer": "Who produced {s}?",
    "production company": "Which company produced {s}?",
    "publication date": "When did {s} come out?",
    "publisher": "Who published {s}?",
    "sibling": "Who is a sibling of {s}?",
    "spouse": "Who is the spouse of {s}?",
    "student of": "Who taught {s}?",
}


def question_on(subject: str, relation: str) -> str | None:
    """What asks for the object of a triple; None for a relation that has no wording here."""
    wording = _QUESTIONS.get(" ".join(relation.lower().split()))
    return wording.format(s=subject) if wording else None
