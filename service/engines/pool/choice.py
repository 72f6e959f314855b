"""Chooses the worker of a call: rendezvous hashing with bounded load, else the least loaded worker.

Rendezvous hashing: Thaler and Ravishankar, 1998; bounded load: Mirrokni, Thorup and Zadimoghaddam,
"Consistent Hashing with Bounded Loads", 2018.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

# The question's worker is used up to this multiple of its share of all work,
BOUND = 1.5
# and always up to this many tokens: a batch absorbs them easily, a cold prefix cache costs more.
SLACK = 4096


@dataclass(frozen=True, slots=True)
class WorkerCandidate:
    """A worker with a free place. `tokens` are outstanding there; `share` is 1, or less while the
    worker is new.
    """

    name: str
    tokens: int
    share: float = 1.0


def choose(candidates: Sequence[WorkerCandidate], key: str | None, tokens: int) -> str | None:
    """Return the worker for a call of about `tokens`, or None without candidates.

    Calls with the same key go to the same worker as long as it has at most `BOUND` times its share
    of the outstanding tokens, or `SLACK`; then to the key's second worker, and so on.
    """
    if not candidates:
        return None
    if key is not None:
        total = sum(candidate.tokens for candidate in candidates) + tokens
        weight = sum(candidate.share for candidate in candidates)
        for candidate in sorted(candidates, key=lambda c: affinity(key, c.name), reverse=True):
            most = candidate.share * max(SLACK, BOUND * total / weight)
            if not candidate.tokens or candidate.tokens + tokens <= most:
                return candidate.name
    return min(candidates, key=lambda c: ((c.tokens + tokens) / c.share, c.name)).name


def affinity(key: str, name: str) -> int:
    """Return the worker's score for a key, which is the same in every gateway and process."""
    return int.from_bytes(hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest())


QUESTIONS = 1024  # the most recent; a forgotten question may return to the worker that failed it


class Losses:
    """The workers that failed each question. A call without a question is not remembered."""

    def __init__(self, most: int = QUESTIONS) -> None:
        self._most = most
        self._workers: OrderedDict[str, frozenset[str]] = OrderedDict()

    def add(self, question: str, worker: str) -> None:
        if not question:
            return
        self._workers[question] = self.of(question) | {worker}
        self._workers.move_to_end(question)
        if len(self._workers) > self._most:
            self._workers.popitem(last=False)

    def of(self, question: str) -> frozenset[str]:
        return self._workers.get(question, frozenset())
