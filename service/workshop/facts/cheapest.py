"""Adaptive-RAG's labels (METHODS.md §8.4): the route of the cheapest strategy that answers a
question correctly.

The answers are read from the folder of an evaluation that asked every question by several methods.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from service.core.domain import RouteName
from service.core.errors import InvalidRequest
from service.evaluation.rows import ROWS, Row, read_rows
from service.workshop.facts.splits import Split, canonical_form, is_held_out

RIGHT: Final = "em"
# The methods of an evaluation that represent a route, cheapest first.
STRATEGIES: Final[dict[RouteName, tuple[str, ...]]] = {
    "direct": ("no_retrieval", "direct"),
    "single": ("one_retrieval", "single"),
    "complex": ("ircot", "complex"),
}


VALIDATES_BELOW: Final = 26  # of 256: about a tenth


class RoutedQuestion(NamedTuple):
    """A question with its route, and where it comes from."""

    question: str
    route: RouteName
    source: str

    @property
    def validates(self) -> bool:
        """Whether a question of the training side is used to fit the temperature instead of
        training."""
        return hashlib.sha256(canonical_form(self.question).encode()).digest()[1] < VALIDATES_BELOW


def weights(rows: Sequence[RoutedQuestion]) -> list[float]:
    """Return each row's weight in the loss, with mean 1.

    Routes have equal weight, and within a route a source is weighted by the square root of its
    size.
    """
    sizes = Counter((row.route, row.source) for row in rows)
    pulls: dict[str, float] = {}
    for (route, _), size in sizes.items():
        pulls[route] = pulls.get(route, 0.0) + size**0.5
    share = len(rows) / len(pulls)
    return [share * sizes[row.route, row.source] ** -0.5 / pulls[row.route] for row in rows]


def is_evaluation(folder: Path) -> bool:
    """Return whether a folder was written by `revelator evaluate`."""
    return (folder / ROWS).is_file()


def cheapest_route(rows: Iterable[Row]) -> RouteName | None:
    """Return the label of one question from its rows.

    It is the first route with a strategy whose answer matches a gold answer exactly, else the
    dataset's own route if that route searches, else None.
    """
    rows = list(rows)
    right = {row.method for row in rows if row.scores.get(RIGHT) == 1}
    for route, methods in STRATEGIES.items():
        if not right.isdisjoint(methods):
            return route
    given = rows[0].gold_route if rows else None
    return given if given in ("single", "complex") else None


def labelled_questions(folder: Path, side: Split) -> list[RoutedQuestion]:
    """Return the questions of one side with their labels, in the order of the evaluation.

    A question is included if at least one method of each route has answered it. Raises
    InvalidRequest if there are none, and StoreError if the rows cannot be read.
    """
    asked: dict[tuple[str, str], list[Row]] = {}
    for row in read_rows(folder):
        if is_held_out(row.question) == (side == "test"):
            asked.setdefault((row.dataset, row.id), []).append(row)
    found = []
    for (dataset, _), rows in asked.items():
        route = cheapest_route(rows) if _complete(rows) else None
        if route is not None:
            found.append(RoutedQuestion(rows[0].question, route, dataset))
    if not found:
        needed = ", ".join(" or ".join(methods) for methods in STRATEGIES.values())
        raise InvalidRequest(
            f"{folder / ROWS}: no question of the {side} side has been answered by all of these "
            f"methods: {needed}"
        )
    return found


def _complete(rows: Sequence[Row]) -> bool:
    answered = {row.method for row in rows if row.error is None}
    return all(not answered.isdisjoint(methods) for methods in STRATEGIES.values())
