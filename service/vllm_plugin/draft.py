"""From the ids an engine generates, and their signals, to the tokens of a draft; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.engines.base import FinishReason
from service.engines.draft_text import DraftText
from service.engines.encoding import Detokenizer
from service.engines.signals import AttentionUpdate, DraftToken


class Draft:
    """Joins ids, texts and signals, which arrive apart; `take` gives the tokens that are whole.

    Tokens that may belong to a stop string, or to a character that is not whole, are held back.
    With `attention` a token also waits for its own row, but for the last one of the call, which
    has none: the engine computes a row only to write another token.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], *, attention: bool) -> None:
        self.finish: FinishReason | None = None
        self.generated = 0
        self._text = DraftText(detokenizer, stop)
        self._attention = attention
        self._taken = 0
        self._numbers: list[tuple[float, float]] = []
        self._updates: list[Sequence[AttentionUpdate]] = []

    @property
    def complete(self) -> bool:
        """Every token of the finished draft has been taken."""
        return self.finish is not None and self._taken == len(self._text.tokens)

    def add_tokens(self, ids: Sequence[int], ends: FinishReason | None = None) -> None:
        """Take the next ids; with `ends` they are the last, and `stop` says: by an end token."""
        for number, token in enumerate(ids):
            if self.finish is not None:
                return
            self.generated += 1
            if ends == "stop" and number == len(ids) - 1:
                self._text.end(token)
                self.finish = "stop"
                return
            self._text.feed(token)
            if self._text.stopped:
                self.finish = "stop"
        if ends is not None and self.finish is None:
            self._text.end()
            self.finish = ends

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
        settled = len(self._text.tokens) if self.finish else self._text.certain
        begin = self._taken
        while self._taken < settled and self._has_signals(self._taken):
            self._taken += 1
        return [self._token(number) for number in range(begin, self._taken)]

    def _token(self, number: int) -> DraftToken:
        placed, (entropy, logprob) = self._text.tokens[number], self._numbers[number]
        has_row = self._attention and not self._is_last(number)
        updates = tuple(self._updates[number]) if has_row else ()
        span = placed.span or (len(self._text.text), len(self._text.text))
        return DraftToken(placed.id, placed.text, span, entropy, logprob, updates)

    def _has_signals(self, number: int) -> bool:
        has_row = number < len(self._updates) or not self._attention or self._is_last(number)
        return has_row and number < len(self._numbers)

    def _is_last(self, number: int) -> bool:
        """Is it the last token that the engine generated for this draft?"""
        return self.finish is not None and number == self.generated - 1
