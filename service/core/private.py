"""Texts of the current question, which no log line and no error may repeat.

A server that refuses a call often quotes what it was sent. The texts of a question are stored here,
per task, and removed from all messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from service.core.domain import Problem
from service.core.errors import RevelatorError, UnknownCollection

WITHHELD: Final = "[withheld]"
LEAST: Final = 16  # consecutive characters that count as a repetition of a long text

_held: ContextVar[Mapping[str, Sequence[str]]] = ContextVar(
    "private_texts", default=MappingProxyType({})
)


def hold(kind: str, *texts: str) -> None:
    """Store these texts in place of the earlier ones of the same kind, for this task and its
    children.
    """
    _held.set({**_held.get(), kind: texts})


def withhold(text: str) -> str:
    """Return `text` without the stored texts: each of them as a whole, and every run of at least
    `LEAST` characters from one.
    """
    held = [text for texts in _held.get().values() for text in texts if text.strip()]
    for whole in held:
        if whole in text:
            text = text.replace(whole, WITHHELD)
    return _without_runs(text, "\n".join(held)) if held and len(text) >= LEAST else text


def problem_of(error: RevelatorError, request_id: str) -> Problem:
    """Return the RFC 9457 problem of an error, without texts of the current question, and without
    the names of collections that nobody has looked through for who is told (`among`)."""
    return Problem(
        type=f"urn:revelator:problem:{error.slug}",
        title=error.title,
        status=error.status,
        detail=withhold(error.brief if isinstance(error, UnknownCollection) else error.detail),
        request_id=request_id,
    )


def _without_runs(text: str, source: str) -> str:
    """Return `text` without the runs that are in `source` too, in time linear in both."""
    shared = set(_windows(text)).intersection(_windows(source))
    kept: list[str] = []
    end = 0  # of what is withheld so far
    for place, character in enumerate(text):
        if text[place : place + LEAST] in shared:
            if place >= end:
                kept.append(WITHHELD)
            end = place + LEAST
        elif place >= end:
            kept.append(character)
    return "".join(kept)


def _windows(text: str) -> Iterator[str]:
    """Iterate over all runs of `LEAST` characters."""
    return (text[place : place + LEAST] for place in range(len(text) - LEAST + 1))
