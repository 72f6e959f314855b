"""From the ids an engine generates, and their signals, to the tokens of a draft; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.generation.base import FinishReason
from service.generation.encoding import Detokenizer
from service.generation.signals import AttentionUpdate, DraftToken
from service.generation.text_stream import StopCutter


@dataclass(slots=True)
class _Placed:
    id: int
    text: str
    start: int
    end: int


class Draft:
    """Joins ids, texts and signals, which arrive apart; `take` gives the tokens that are whole.

    Tokens that may belong to a stop string, or to a character that is not whole, are held back.
    With `attention` a token also waits for its own row, but for the last one of the call, which
    has none: the engine computes a row only to write another token.
    """

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...], *, attention: bool) -> None:
        self.finish: FinishReason | None = None
        self.generated = 0
        self._detokenizer = detokenizer
        self._cutter = StopCutter(stop)
        self._attention = attention
        self._unplaced: list[int] = []
        self._placed: list[_Placed] = []
        self._length = 0
        self._shown = 0
        self._taken = 0
        self._numbers: list[tuple[float, float]] = []
        self._updates: list[Sequence[AttentionUpdate]] = []

    @property
    def complete(self) -> bool:
        """Every token of the finished draft has been taken."""
        return self.finish is not None and self._taken == len(self._placed)

    def add_tokens(self, ids: Iterable[int], ends: FinishReason | None = None) -> None:
        """Take the next ids; with `ends` they are the last, and `stop` says: an end token."""
        ids = list(ids)
        for number, token in enumerate(ids):
            if self.finish is not None:
                return
            self.generated += 1
            if ends == "stop" and number == len(ids) - 1:
                self._end("stop")
                self._placed.append(_Placed(token, "", self._shown, self._shown))
                return
            self._unplaced.append(token)
            self._place(self._detokenizer.feed(token), whole=not self._detokenizer.holds_back)
        if ends is not None and self.finish is None:
            self._end(ends)

    def add_signals(
        self,
        numbers: Iterable[tuple[float, float]],
        updates: Iterable[Sequence[AttentionUpdate]],
    ) -> None:
        """Take entropies with log-probabilities, and the updates of the next rows."""
        self._numbers += numbers
        self._updates += updates

    def take(self) -> list[DraftToken]:
        """The next tokens of which all is known."""
        tokens: list[DraftToken] = []
        while self._taken < len(self._placed) and self._is_whole(self._taken):
            place = self._placed[self._taken]
            entropy, logprob = self._numbers[self._taken]
            updates = () if self._is_last(self._taken) else self._updates_of(self._taken)
            span = (place.start, place.end)
            tokens.append(DraftToken(place.id, place.text, span, entropy, logprob, tuple(updates)))
            self._taken += 1
        return tokens

    def _is_whole(self, number: int) -> bool:
        if self.finish is None and self._placed[number].end > self._shown:
            return False
        if number >= len(self._numbers):
            return False
        has_row = number < len(self._updates) or not self._attention
        return has_row or self._is_last(number)

    def _is_last(self, number: int) -> bool:
        """Is it the last token that the engine generated for this draft?"""
        return self.finish is not None and number == self.generated - 1

    def _updates_of(self, number: int) -> Sequence[AttentionUpdate]:
        return self._updates[number] if self._attention else ()

    def _place(self, text: str, *, whole: bool) -> None:
        """Give the waiting ids the text that has become certain, the last of them all of it."""
        if not whole:
            return
        end = self._length + len(text)
        for token in self._unplaced:
            self._placed.append(_Placed(token, "", self._length, end))
        if self._unplaced:
            self._placed[-1].text = text
        self._unplaced.clear()
        self._length = end
        self._shown += len(self._cutter.feed(text))
        if self._cutter.stopped:
            self._cut()

    def _cut(self) -> None:
        """A stop string is whole: end the draft before it."""
        self.finish = "stop"
        kept = enumerate(self._placed)
        self._placed = [p for n, p in kept if n < self._taken or p.start < self._shown]
        for place in self._placed:
            place.text = place.text[: self._shown - place.start]
            place.end = min(place.end, self._shown)

    def _end(self, reason: FinishReason) -> None:
        self._place(self._detokenizer.flush(), whole=True)
        if self.finish is None:
            self._shown += len(self._cutter.flush())
            self.finish = reason
