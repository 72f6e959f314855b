"""The state that a worker keeps for requests with signals, without vLLM.

Positions of a call: 0 to prompt - 1 are its prompt, followed by its draft's tokens. Row p is the
attention of the token at p over positions 0 to p; it predicts the token at p + 1. Each row is taken
once: a preempted request recomputes the same rows, which are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from service.engines.attention_torch import Maxima
from service.vllm_plugin import NAME

FORGOTTEN_S = 300.0  # an ended call that its API server never released is dropped after this


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants, as sent in its sampling parameters.

    A `score` reads its prompt; other requests write a draft. `attention` requests maxima, and all
    rows of a draft or `rows` of a score. `entropies` may be off for a score only.
    """

    call: str
    score: bool = False
    attention: bool = True
    entropies: bool = True
    rows: tuple[int, ...] = ()

    def to_args(self) -> dict[str, Any]:
        names = ("call", "score", "attention", "entropies")
        return {NAME: {name: getattr(self, name) for name in names} | {"rows": list(self.rows)}}

    @staticmethod
    def of(extra_args: Mapping[str, Any] | None) -> Wish | None:
        wish = (extra_args or {}).get(NAME)
        if not isinstance(wish, dict):
            return None
        return Wish(**{**wish, "rows": tuple(wish.get("rows", ()))})


class OfStep:
    """Numbers of one step, which stay on their device until they are read."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    @cached_property
    def host(self) -> list[list[float]]:
        return self._values.tolist()


class Tracked:
    """One call on this worker. `error` is the reason why its signals are lost; it then takes no
    more.
    """

    def __init__(self, request: str, wish: Wish, prompt: Sequence[int], most_tokens: int) -> None:
        self.request = request
        self.wish = wish
        self.prompt = prompt
        self.error: str | None = None
        self.heads = 0
        self.ended: float | None = None
        self.next_row = 0 if wish.score else len(prompt) - 1
        self.watched = 0 if wish.score else len(prompt)
        self.capacity = len(prompt) if wish.score else most_tokens
        self.rows: dict[int, Tensor] = {}
        self.numbers: list[tuple[OfStep, int] | None] = []
        self.means: list[Tensor] = []
        self.maxima: Maxima | None = None
        self._wanted = frozenset(wish.rows)

    @property
    def next_number(self) -> int:
        """The row whose prediction's entropy comes next."""
        return len(self.numbers) + (0 if self.wish.score else len(self.prompt) - 1)

    @property
    def complete(self) -> bool:
        """Whether a score is complete."""
        end = len(self.prompt)
        has_rows = not self.wish.attention or self.next_row >= end
        return has_rows and (not self.wish.entropies or self.next_number >= end - 1)

    @property
    def nbytes(self) -> int:
        tensors = [*self.rows.values(), *self.means]
        kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return kept + (self.maxima.nbytes if self.maxima else 0)

    def missing_rows(self, first: int, count: int) -> range:
        """Return which of the rows about to be computed to take. A skipped row is a permanent
        error.
        """
        if self.error or not self.wish.attention:
            return range(0)
        if first > self.next_row:
            self.error = f"rows {self.next_row} to {first - 1} were never computed"
            return range(0)
        last = min(first + count, self.watched + self.capacity)
        return range(max(first, self.next_row), max(last, self.next_row))

    def missing_numbers(self, first: int, count: int) -> range:
        """Return the rows about to be computed whose prediction's entropy is to be taken."""
        if self.error or not self.wish.entropies:
            return range(0)
        begin = self.next_number
        if self.wish.score:
            return range(begin, max(begin, min(first + count, len(self.prompt) - 1)))
        return range(begin, begin + 1) if first + count - 1 == begin else range(0)

    def take_row(self, weights: Tensor, mean: Tensor) -> None:
        """Take the next row, (heads, row + 1), and its mean over heads."""
        row, self.heads = self.next_row, weights.shape[0]
        if not self.wish.score or row in self._wanted:
            self.rows[row] = mean.clone()
        if row >= self.watched:
            maxima = self._maxima(weights)
            maxima.fold_one(weights[:, self.watched :])
            if not self.wish.score:
                self.means.append(maxima.means())
        self.next_row = row + 1

    def take_rows(self, weights: Tensor) -> None:
        """Take the next rows of a score, (heads, rows, row + rows)."""
        self.heads = weights.shape[0]
        for number in range(weights.shape[1]):
            if (row := self.next_row + number) in self._wanted:
                self.rows[row] = weights[:, number, : row + 1].mean(dim=0)
        self._maxima(weights).fold(weights)
        self.next_row += weights.shape[1]

    def take_numbers(self, step: OfStep | None, columns: Iterable[int]) -> None:
        """Take entropy and log-probability of the next predictions: columns of a step's (2, …).

        None means that this rank of a tensor-parallel group has no logits; another one does.
        """
        self.numbers += [(step, column) if step else None for column in columns]

    def _maxima(self, weights: Tensor) -> Maxima:
        if self.maxima is None:
            self.maxima = Maxima(weights.shape[0], self.capacity, weights.device)
        return self.maxima


class Tracker:
    """All tracked calls of a worker, by call and by vLLM's request id."""

    def __init__(self) -> None:
        self.calls: dict[str, Tracked] = {}
        self.requests: dict[str, Tracked] = {}

    def begin(self, request: str, wish: Wish, prompt: Sequence[int], most_tokens: int) -> Tracked:
        tracked = Tracked(request, wish, prompt, most_tokens)
        self.calls[wish.call] = self.requests[request] = tracked
        return tracked

    def end(self, request: str) -> None:
        """Record that the engine finished or aborted the request; its signals are kept until
        released.
        """
        tracked = self.requests.pop(request, None)
        if tracked is None:
            return
        now = tracked.ended = time.monotonic()
        old = [name for name, t in self.calls.items() if t.ended and now - t.ended > FORGOTTEN_S]
        self.release(old)

    def release(self, calls: Iterable[str]) -> None:
        """Free all data of these calls, running or not."""
        for call in calls:
            tracked = self.calls.pop(call, None)
            if tracked is not None and self.requests.get(tracked.request) is tracked:
                del self.requests[tracked.request]

    @property
    def nbytes(self) -> int:
        return sum(tracked.nbytes for tracked in self.calls.values())


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A tracked request's stretch of a batch: `count` rows from `begin`, positions from `first`.

    `index` is the request's place in the batch.
    """

    tracked: Tracked
    index: int
    begin: int
    count: int
    first: int


def parts_of(
    requests: Mapping[str, Tracked],
    batch: Sequence[str | None],
    starts: Sequence[int],
    computed: Sequence[int],
) -> list[BatchPart]:
    """Return the rows of each request. `batch` names the requests in order; request i has rows
    starts[i] to starts[i + 1] - 1, after computed[i] positions that are in the cache already.
    """
    return [
        BatchPart(tracked, n, int(starts[n]), int(starts[n + 1] - starts[n]), int(computed[n]))
        for n, request in enumerate(batch)
        if request is not None and (tracked := requests.get(request)) is not None  # a dict  # nosec B113
    ]


def targets_of(tracked: Tracked, rows: range) -> Tensor:
    """Return the tokens that these rows of a score predict."""
    return torch.tensor(tracked.prompt[rows.start + 1 : rows.stop + 1], dtype=torch.long)
