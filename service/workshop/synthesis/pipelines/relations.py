"""One question per relation of 2WikiMultihopQA's evidence (METHODS.md §1.5), in our wording."""

from __future__ import annotations

from service.workshop.facts.wordings import EVIDENCE


def question_on(subject: str, relation: str) -> str | None:
    """What asks for the object of a triple; None for a relation that has no wording here."""
    wording = EVIDENCE.get(" ".join(relation.lower().split()))
    return wording.format(s=subject) if wording else None
