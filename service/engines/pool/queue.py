"""Queue of calls that wait for a place, fair between questions (no I/O)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Place = TypeVar("Place")


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits. `turn` is the number of its question's earlier calls, `tokens` an estimate
    of its size.

    `model` None accepts any model. `avoid` are workers that failed it before.
    """

    question: str
    turn: int = 0
    tokens: int = 0
    model: str | None = None
    signals: bool = False
    avoid: frozenset[str] = frozenset()


class WaitingCalls:
    """Questions take turns, those in progress before new ones; the calls of a question stay in
    order.

    Therefore the parallel calls of one question do not block others, and questions in progress
    finish first.
    """

    def __init__(self) -> None:
        self._under_way: OrderedDict[str, deque[WaitingCall]] = OrderedDict()
        self._new: OrderedDict[str, deque[WaitingCall]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: WaitingCall) -> None:
        self._ring(waiter).setdefault(waiter.question, deque()).append(waiter)
        self._count += 1

    def remove(self, waiter: WaitingCall) -> None:
        """Remove a call whose caller left or whose time limit has passed."""
        ring = self._ring(waiter)
        calls = ring[waiter.question]
        calls.remove(waiter)
        self._count -= 1
        if not calls:
            del ring[waiter.question]

    def take(
        self, place: Callable[[WaitingCall], Place | None]
    ) -> tuple[WaitingCall, Place] | None:
        """Remove and return the next call for which `place` finds a place."""
        for ring in (self._under_way, self._new):
            for question, calls in ring.items():
                found = place(calls[0])
                if found is not None:
                    ring.move_to_end(question)
                    waiter = calls[0]
                    self.remove(waiter)
                    return waiter, found
        return None

    def _ring(self, waiter: WaitingCall) -> OrderedDict[str, deque[WaitingCall]]:
        return self._under_way if waiter.turn else self._new
