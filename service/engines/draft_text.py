"""Where the tokens of a text that is being written lie in it (see `DraftToken`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.engines.encoding import Detokenizer, PromptEncoder
from service.engines.signals import ScoreRequest, Span


class Decoder(Protocol):
    """`service.engines.encoding.Detokenizer`."""

    def feed(self, token: int) -> str: ...

    def flush(self) -> str: ...


@dataclass(slots=True)
class Placed:
    """A token; `span` is None while the character it belongs to is not whole."""

    id: int
    text: str = ""
    span: Span | None = None


class DraftText:
    """Feed it ids. A stop string ends the text and is cut off it, with the tokens inside it."""

    def __init__(self, decoder: Decoder, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.tokens: list[Placed] = []
        self.stopped = False
        self._decoder = decoder
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)

    def feed(self, token: int) -> None:
        self.tokens.append(Placed(token))
        self._add(self._decoder.feed(token))

    def end(self, token: int | None = None) -> None:
        """The text is over; `token` is the special one that ended it."""
        if not self.stopped:
            self._place(self._decoder.flush())
            for placed in self.tokens:
                placed.span = placed.span or (len(self.text), len(self.text))
            if token is not None:
                self.tokens.append(Placed(token, "", (len(self.text), len(self.text))))

    @property
    def certain(self) -> int:
        """How many tokens are settled: placed, and no part of what may become a stop string."""
        end = len(self.text) - self._partial_stop()
        count = 0
        for placed in self.tokens:
            if placed.span is None or (not self.stopped and placed.span[1] > end):
                break
            count += 1
        return count

    def _add(self, text: str) -> None:
        if text:
            self._place(text)
            self._stop(len(self.text) - len(text))

    def _place(self, text: str) -> None:
        span = (len(self.text), len(self.text) + len(text))
        waiting = [placed for placed in self.tokens if placed.span is None]
        for placed in waiting:
            placed.span = span
        if waiting:
            waiting[-1].text = text
            self.text += text

    def _stop(self, before: int) -> None:
        """Cut at the stop string that is whole first, looking behind place `before`."""
        begin = max(0, before - self._longest + 1)
        found = [
            (at + len(stop), at) for stop in self._stops if (at := self.text.find(stop, begin)) >= 0
        ]
        if not found:
            return
        cut = min(found)[1]
        self.stopped, self.text = True, self.text[:cut]
        self.tokens = [placed for placed in self.tokens if placed.span and placed.span[0] < cut]
        for placed in self.tokens:
            first, last = placed.span or (cut, cut)
            placed.text = placed.text[: max(0, cut - first)]
            placed.span = (first, min(last, cut))

    def _partial_stop(self) -> int:
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stops):
                return length
        return 0


def place_tokens(encoder: PromptEncoder, request: ScoreRequest) -> tuple[list[int], list[Span]]:
    """The ids that a request wants read, and where they lie in its text (see `ScoreRequest`)."""
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
    """The tokens whose rows a request wants: those it overlaps, but the first, which has none."""
    return [
        number
        for number, (begin, end) in enumerate(spans)
        if number and any(begin < last and end > first for first, last in request.row_spans)
    ]
