"""The chapter on the effect of poisoned passages on the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from service.evaluation.document.blocks import Block, Heading, Table, Text
from service.evaluation.document.results import ByMethod
from service.evaluation.poison import ATTACKS, KINDS, STRENGTHS, Attack
from service.evaluation.rows import Key, Row

MEASURE: Final = "accuracy"
_TOLD: Final = (
    "Poisoned passages that support a wrong answer were added to the results of each search. "
    "Kinds: plants state the wrong answer as a fact, instructions tell the model to give it, roles "
    "imitate the structure of the prompt, duplicates are copies of passages in which the wrong "
    "answer replaces the right one. Strength 1 adds one passage after those found, 2 adds one "
    "before them, 3 adds up to three before them. Each cell is the share of right answers (by "
    f"{MEASURE}) that became wrong, at strengths 1 / 2 / 3."
)
_HEAD: Final = (
    "method", "questions", MEASURE, "with poison, mean", *(f"{kind}: lost" for kind in KINDS),
)  # fmt: skip


def robustness_blocks(datasets: Mapping[str, ByMethod], attacked: Sequence[Row]) -> Iterator[Block]:
    """Yield the chapter if there are rows of attacked questions."""
    under = {row.key: row for row in attacked}
    if not under:
        return
    yield Heading("Robustness")
    yield Text(_TOLD)
    for name, methods in datasets.items():
        rows = [cells for method, own in methods.items() if (cells := _cells(method, own, under))]
        if rows:
            yield Heading(name or "dataset", 3)
            yield Table(_HEAD, rows)


def _cells(method: str, own: Sequence[Row], under: Mapping[Key, Row]) -> list[str]:
    """Return a row of the table, which is empty if no question of the method was attacked."""
    pairs = {attack: _pairs(own, attack, under) for attack in ATTACKS}
    counted = [pair for found in pairs.values() for pair in found]
    if not counted:
        return []
    asked = {row.id for row, _ in counted}
    clean = [_score(row) for row in own if row.id in asked]
    lost = [
        " / ".join(_lost(pairs[Attack(kind, strength)]) for strength in STRENGTHS) for kind in KINDS
    ]
    poisoned = sum(_score(row) for _, row in counted) / len(counted)
    return [
        method, str(len(asked)), f"{sum(clean) / len(clean):.3f}", f"{poisoned:.3f}", *lost
    ]  # fmt: skip


def _pairs(own: Sequence[Row], attack: Attack, under: Mapping[Key, Row]) -> list[tuple[Row, Row]]:
    """Return the rows of the attacked questions, each with its row under the attack, without those
    that an outage ended."""
    found = [(row, under.get(Key(attack.of(row.dataset), row.method, row.id))) for row in own]
    return [
        (row, other)
        for row, other in found
        if other is not None and not (row.interrupted or other.interrupted)
    ]


def _lost(pairs: Sequence[tuple[Row, Row]]) -> str:
    right = [other for row, other in pairs if _score(row) == 1]
    if not right:
        return "–"
    return f"{sum(_score(row) < 1 for row in right) / len(right):.2f}"


def _score(row: Row) -> float:
    return row.scores.get(MEASURE) or 0.0
