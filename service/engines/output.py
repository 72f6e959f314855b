"""Converts the ids that a model writes into text: characters, stop strings, and the tokens of a
draft.

Pure. All input may arrive in pieces of any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.base import FinishReason
from service.engines.encoding import PromptEncoder
from service.engines.signals import DraftToken, Maximum, ScoreRequest, Span


@dataclass(slots=True)
class Placed:
    """A token. `span` is None until the character it belongs to is complete."""

    id: int
    text: str = ""
    span: Span | None = None


class DraftText:
    """A text that is assembled from ids. A stop string ends it, and is removed with its tokens."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.tokens: list[Placed] = []
        self.stopped = False
        self._detokenizer = detokenizer
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._placed = 0  # tokens that have a span
        self._ended = False

    def feed(self, token: int) -> None:
        self.tokens.append(Placed(token))
        if text := self._detokenizer.feed(token):
            self._place(text)
            self._stop(len(self.text) - len(text))

    def end(self, token: int | None = None) -> None:
        """End the text; `token` is the special token that ended it."""
        if not self.stopped:
            self._ended = True
            self._place(self._detokenizer.flush())
            if token is not None:
                self.tokens.append(Placed(token, "", (len(self.text), len(self.text))))

    @property
    def shown(self) -> str:
        """The text, without an end that may become a stop string."""
        text = self.text
        if not (self.stopped or self._ended):
            for length in range(min(self._longest - 1, len(text)), 0, -1):
                if any(stop.startswith(text[-length:]) for stop in self._stops):
                    return text[:-length]
        return text

    @property
    def certain(self) -> int:
        """The number of tokens that are final: placed, and not part of a possible stop string."""
        end = len(self.shown)
        count = 0
        for placed in self.tokens:
            if placed.span is None or (not self.stopped and placed.span[1] > end):
                break
            count += 1
        return count

    def _place(self, text: str) -> None:
        span = (len(self.text), len(self.text) + len(text))
        waiting = self.tokens[self._placed :]
        for placed in waiting:
            placed.span = span
        if waiting:
            waiting[-1].text = text
            self.text += text
        self._placed = len(self.tokens)

    def _stop(self, before: int) -> None:
        """Cut at the first complete stop string, searching from place `before` on."""
        begin = max(0, before - self._longest + 1)
        places = [(self.text.find(stop, begin), len(stop)) for stop in self._stops]
        found = [(place + length, place) for place, length in places if place >= 0]
        if not found:
            return
        cut = min(found)[1]  # of several, the one that is complete first
        self.stopped, self.text = True, self.text[:cut]
        self.tokens = [placed for placed in self.tokens if placed.span and placed.span[0] < cut]
        for placed in self.tokens:
            first, last = placed.span or (cut, cut)
            placed.text = placed.text[: max(0, cut - first)]
            placed.span = (first, min(last, cut))


def place_tokens(encoder: PromptEncoder, request: ScoreRequest) -> tuple[list[int], list[Span]]:
    """Return the ids that a request wants to be read, and their spans in its text (see
    `ScoreRequest`).
    """
    if request.text is not None:
        return encoder.encode_with_spans(request.text, bos=request.bos)
    draft = DraftText(Detokenizer(encoder.backend))
    for token in request.token_ids:
        draft.feed(token)
    draft.end()
    start, before = encoder.encode_with_spans("", bos=request.bos)
    return (
        [*start, *request.token_ids],
        [*before, *(placed.span or (0, 0) for placed in draft.tokens)],
    )


def wanted_tokens(spans: Sequence[Span], request: ScoreRequest) -> list[int]:
    """Return the tokens whose rows are requested: those that overlap the spans, except the first,
    which has none.
    """
    return [
        number
        for number, (begin, end) in enumerate(spans)
        if number and any(begin < last and end > first for first, last in request.row_spans)
    ]


LONGEST_CHARACTER = 4  # bytes in UTF-8, and so at most as many byte tokens
CONTEXT_TAIL = 6  # ids of a raw prompt that serve as context to decode its continuation


class Detokenizer:
    """Converts the ids of one output into text, piece by piece.

    Bytes of an unfinished character are held back. Some decoders drop a leading space: this is
    allowed at the start of the output only, and not even there with `context`, the end of a raw
    prompt.
    """

    def __init__(self, backend: Any, context: Sequence[int] = ()) -> None:
        self._backend = backend
        self._ids = list(context)
        self._begin = 0
        self._read = len(self._ids)
        self._unfinished = 0

    def feed(self, token: int) -> str:
        """Take the next id. Return the text that is now final."""
        self._ids.append(token)
        new = self._new_text()
        if new.endswith("\ufffd"):
            self._unfinished += 1
            if self._unfinished < LONGEST_CHARACTER:
                return ""
        self._unfinished = 0
        if new:
            self._begin, self._read = self._read, len(self._ids)
        return new

    def flush(self) -> str:
        """Return what was held back, without an incomplete character."""
        new = self._new_text()
        self._begin = self._read = len(self._ids)
        return new.rstrip("\ufffd")

    def _new_text(self) -> str:
        known = self._decode(self._ids[self._begin : self._read])
        return self._decode(self._ids[self._begin :])[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=True))


class TokenAssembler:
    """Joins ids, texts and signals, which arrive separately; `take` returns the complete tokens.

    Tokens that may belong to a stop string, or to an incomplete character, are held back. With
    `attention` a token also waits for its own row, except for the last token of the call, which has
    none: the engine computes a row only to write another token.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], *, attention: bool) -> None:
        self.finish: FinishReason | None = None
        self.generated = 0
        self._text = DraftText(detokenizer, stop)
        self._attention = attention
        self._taken = 0
        self._numbers: list[tuple[float, float]] = []
        self._updates: list[Sequence[Maximum]] = []
        self._rows: list[Any] = []

    @property
    def complete(self) -> bool:
        """Whether every token of the finished draft was taken."""
        return self.finish is not None and self._taken == len(self._text.tokens)

    def add_tokens(self, ids: Sequence[int], ends: FinishReason | None = None) -> None:
        """Take the next ids. With `ends` they are the last ones; `stop` says whether by an end
        token.
        """
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
        updates: Iterable[Sequence[Maximum]],
        rows: Iterable[Any] = (),
    ) -> None:
        """Take entropies with log-probabilities, the updates of the tokens' own rows, and the rows
        that predicted them, in any form."""
        self._numbers += numbers
        self._updates += updates
        self._rows += rows

    def take(self) -> list[DraftToken]:
        """Return the next tokens whose data are complete."""
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
        row = self._rows[number] if self._attention else ()
        return DraftToken(placed.id, placed.text, span, entropy, logprob, updates, row)

    def _has_signals(self, number: int) -> bool:
        has_row = number < len(self._updates) or not self._attention or self._is_last(number)
        return has_row and number < len(self._numbers)

    def _is_last(self, number: int) -> bool:
        """Whether this is the last token that the engine generated for the draft."""
        return self.finish is not None and number == self.generated - 1


def changed_maxima(before: NDArray[Any], after: NDArray[Any]) -> list[Maximum]:
    """Return what one more row has changed in a draft's maxima, one a token."""
    known = np.full_like(after, -1.0)
    known[: len(before)] = before
    (keys,) = np.nonzero(after != known)
    return list(zip(keys.tolist(), after[keys].tolist(), strict=True))
