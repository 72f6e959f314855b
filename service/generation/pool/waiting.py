"""Calls that wait for a place, fair between questions; no I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Place = TypeVar("Place")


@dataclass(slots=True, eq=False)
class Waiter:
    """A call that waits. `turn`: calls its question made before; `tokens`: about how many it has.

    `model` None is any. `avoid`: workers that failed it already.
    """

    question: str
    turn: int = 0
    tokens: int = 0
    model: str | None = None
    signals: bool = False
    avoid: frozenset[str] = frozenset()


class WaitingCalls:
    """Questions take turns, those under way before new ones; a question's own calls in order.

    So no question's fan-out holds up another, and what was begun is finished first.
    """

    def __init__(self) -> None:
        self._under_way: OrderedDict[str, deque[Waiter]] = OrderedDict()
        self._new: OrderedDict[str, deque[Waiter]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: Waiter) -> None:
        self._ring(waiter).setdefault(waiter.question, deque()).append(waiter)
        self._count += 1

    def remove(self, waiter: Waiter) -> None:
        """Its caller left, or it has waited long enough."""
        ring = self._ring(waiter)
        calls = ring[waiter.question]
        calls.remove(waiter)
        self._count -= 1
        if not calls:
            del ring[waiter.question]

    def take(self, place: Callable[[Waiter], Place | None]) -> tuple[Waiter, Place] | None:
        """Remove and return the first call in turn that `place` finds a place for."""
        for ring in (self._under_way, self._new):
            for question, calls in ring.items():
                found = place(calls[0])
                if found is not None:
                    ring.move_to_end(question)
                    waiter = calls[0]
                    self.remove(waiter)
                    return waiter, found
        return None

    def _ring(self, waiter: Waiter) -> OrderedDict[str, deque[Waiter]]:
        return self._under_way if waiter.turn else self._new
