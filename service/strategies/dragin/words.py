"""Words of a text by where its tokens lie (METHODS.md §3.2, RIND step 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from service.engines.signals import Span


@dataclass(frozen=True, slots=True)
class Word:
    """Tokens `first` to `last`; `text` is what they spell at `span`, without white space."""

    text: str
    span: Span
    first: int
    last: int

    @property
    def tokens(self) -> range:
        return range(self.first, self.last + 1)


def group_words(text: str, spans: Sequence[Span], first: int = 0) -> list[Word]:
    """The words of `text`, whose tokens lie at `spans`; the first of them is token `first`.

    A word starts with the first token and with each that brings white space, in its own text or,
    where a tokenizer cuts that off, before it. That is the rule of the official code for Llama-2
    (`▁`, a line break) and holds for any tokenizer; punctuation joins the word before it, and so
    does the token that ends a draft, whose span is empty.
    """
    starts: list[int] = []
    end = 0
    for index, (begin, stop) in enumerate(spans):
        brought = text[end:begin] + text[begin : min(begin + 1, stop)]
        if not index or (begin >= end and any(map(str.isspace, brought))):
            starts.append(index)
        end = max(end, stop)
    bounds = [*starts, len(spans)]
    return [_word(text, spans, left, right, first) for left, right in pairwise(bounds)]


def _word(text: str, spans: Sequence[Span], left: int, right: int, offset: int) -> Word:
    begin, end = spans[left][0], max(stop for _, stop in spans[left:right])
    piece = text[begin:end]
    begin += len(piece) - len(piece.lstrip())
    end = max(begin, end - (len(piece) - len(piece.rstrip())))
    return Word(text[begin:end], (begin, end), offset + left, offset + right - 1)


def join(*parts: str) -> str:
    """Single spaces between the parts that are not empty (METHODS.md §3.2)."""
    return " ".join(part for part in (part.strip() for part in parts) if part)
