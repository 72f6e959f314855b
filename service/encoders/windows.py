"""The inputs of the extractor, in training and when it serves: a question beside a window
of a passage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

QUESTION_PIECES: Final = 48
TITLE_PIECES: Final = 16
SHORTEST: Final = 96  # pieces of an input; the longest question and title leave room for text
OVERLAP: Final = 32  # pieces that two neighbouring windows of a long passage share


@dataclass(frozen=True, slots=True)
class Window:
    """One input. Only the pieces from `first` on, up to the last separator, are the passage's text;
    `spans` are their places in it, in characters."""

    ids: list[int]
    first: int
    spans: list[tuple[int, int]]


class Windows:
    """Cuts passages into windows.

    The input is `cls` question `sep`… [title :] text `sep`. A model with the special tokens `<s>`
    and `</s>` has two separators in the middle, a BERT has one.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` belongs to the library `tokenizers`. Raises KeyError without its marks."""
        self._tokenizer = tokenizer
        known = tokenizer.token_to_id
        double = known("<s>") is not None and known("</s>") is not None
        names = ("<s>", "</s>", ":") if double else ("[CLS]", "[SEP]", ":")
        found = [known(name) for name in names]
        if None in found:
            raise KeyError(names[found.index(None)])
        self.cls, self.sep, self._colon = found
        self._middle = [self.sep] * (2 if double else 1)
        self.padding: int = known("<pad>" if double else "[PAD]")

    def cut(self, question: str, passages: Sequence[tuple[str, str]], longest: int) -> list[Any]:
        """Return, for each passage (title, text), its windows of at most `longest` pieces."""
        (asked,) = self._pieces([question])
        head = [self.cls, *asked.ids[:QUESTION_PIECES], *self._middle]
        titles = self._pieces([title for title, _ in passages])
        texts = self._pieces([text for _, text in passages])
        return [
            _cut(head, title.ids[:TITLE_PIECES], self._colon, text, longest, self.sep)
            for title, text in zip(titles, texts, strict=True)
        ]

    def _pieces(self, texts: Sequence[str]) -> Any:
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)


def _cut(
    head: list[int], title: list[int], colon: int, text: Any, longest: int, sep: int
) -> list[Window]:
    before = [*head, *title, colon] if title else head
    room = longest - len(before) - 1
    pieces, offsets = text.ids, text.offsets  # each reading of them copies all
    windows = []
    start = 0
    while True:
        end = min(start + room, len(pieces))
        ids = [*before, *pieces[start:end], sep]
        windows.append(Window(ids, len(before), offsets[start:end]))
        if end == len(pieces):
            return windows
        start = end - min(OVERLAP, room // 2)
