"""The state that a worker keeps for requests with signals, without vLLM.

Positions of a call: 0 to prompt - 1 are its prompt, followed by its draft's tokens. Row p is the
attention of the token at p over positions 0 to p; it predicts the token at p + 1. Each row is taken
once: a preempted request recomputes the same rows, which are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from service.engines.attention_torch import Maxima
from service.vllm_plugin import NAME


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants, as sent in its sampling parameters.

    A `score` reads its prompt; other requests write a draft of at most `tokens` tokens after it.
    `prompt` is its length. `attention` requests maxima, and all rows of a draft or `rows` of a
    score.
    """

    call: str
    prompt: int
    tokens: int = 1
    score: bool = False
    attention: bool = True
    rows: tuple[int, ...] = ()

    def to_args(self) -> dict[str, Any]:
        return {NAME: asdict(self) | {"rows": list(self.rows)}}

    @staticmethod
    def of(extra_args: Mapping[str, Any] | None) -> Wish | None:
        """Raises TypeError if the content is not of `to_args`."""
        wish = (extra_args or {}).get(NAME)
        return None if wish is None else Wish(**{**wish, "rows": tuple(wish["rows"])})


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

    def __init__(self, wish: Wish, error: str | None = None) -> None:
        self.wish = wish
        self.error = error
        self.heads = 0
        self.seen = time.monotonic()
        self.next_row = 0 if wish.score else wish.prompt - 1
        self.watched = 0 if wish.score else wish.prompt
        self.capacity = wish.prompt if wish.score else wish.tokens
        self.rows: dict[int, Tensor] = {}
        self.numbers: list[tuple[OfStep, int]] = []  # entropy and log-probability: a column each
        self.means: list[Tensor] = []  # after each row of a draft, or all rows of a score
        self.maxima: Maxima | None = None
        self._wanted = frozenset(wish.rows)

    @property
    def nbytes(self) -> int:
        tensors = [*self.rows.values(), *self.means]
        kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return kept + (self.maxima.nbytes if self.maxima else 0)

    def missing_rows(self, first: int, count: int) -> range:
        """Return which of the rows just computed to take. A skipped row is a permanent error."""
        if self.error or not self.wish.attention:
            return range(0)
        if first > self.next_row:
            self.error = f"rows {self.next_row} to {first - 1} were never computed"
            return range(0)
        last = min(first + count, self.watched + self.capacity)
        return range(max(first, self.next_row), max(last, self.next_row))

    def lacks_number(self, row: int) -> bool:
        """Whether the entropy of this row's prediction comes next."""
        next_number = self.wish.prompt - 1 + len(self.numbers)
        return not self.error and not self.wish.score and row == next_number

    def take_row(self, weights: Tensor, mean: Tensor) -> None:
        """Take the next row of a draft, (heads, row + 1), and its mean over heads."""
        row, self.heads = self.next_row, weights.shape[0]
        self.rows[row] = mean.clone()
        if row >= self.watched:
            maxima = self._maxima(weights)
            maxima.fold_one(weights[:, self.watched :])
            self.means.append(maxima.means())
        self.next_row = row + 1

    def take_rows(self, weights: Tensor) -> None:
        """Take the next rows of a score, (heads, rows, row + rows)."""
        self.heads = weights.shape[0]
        for number in range(weights.shape[1]):
            if (row := self.next_row + number) in self._wanted:
                self.rows[row] = weights[:, number, : row + 1].mean(dim=0)
        maxima = self._maxima(weights)
        maxima.fold(weights)
        self.next_row += weights.shape[1]
        if self.next_row == self.wish.prompt:
            self.means.append(maxima.means())

    def _maxima(self, weights: Tensor) -> Maxima:
        if self.maxima is None:
            self.maxima = Maxima(weights.shape[0], self.capacity, weights.device)
        return self.maxima
