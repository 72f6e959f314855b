"""MiniLM's word pieces, by whose number passages are cut in all installations alike.

`service/models/minilm/vocab.txt` is the vocabulary of all-MiniLM-L6-v2 (BERT's, Apache-2.0).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from importlib import resources
from typing import Any


def minilm_tokenizer() -> Any:
    """Return BERT's uncased tokenizer with the shipped vocabulary, without padding and truncation.
    Special tokens in a text are treated as ordinary text."""
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415

    file = resources.files("service") / "models" / "minilm" / "vocab.txt"
    entries = file.read_text(encoding="utf-8").splitlines()
    vocabulary = {piece: number for number, piece in enumerate(entries)}
    tokenizer: Any = BertWordPieceTokenizer(vocabulary)._tokenizer
    tokenizer.encode_special_tokens = True
    return tokenizer


_shared = cache(minilm_tokenizer)


def count_pieces(text: str) -> int:
    """Return the number of word pieces of `text`, without the two that frame every input."""
    return len(_shared().encode(text, add_special_tokens=False))


class Pieces:
    """The word pieces of a text, which is tokenised once; spans of it are counted by look-up."""

    def __init__(self, text: str) -> None:
        self._text = text
        encoding = _shared().encode(text, add_special_tokens=False)
        self._starts = [start for start, _ in encoding.offsets]

    def count(self, start: int, end: int) -> int:
        """Return `count_pieces(text[start:end])`; positions in code points."""
        if self._cuts_a_token(start) or self._cuts_a_token(end):
            return count_pieces(self._text[start:end])
        return bisect_left(self._starts, end) - bisect_left(self._starts, start)

    def _cuts_a_token(self, place: int) -> bool:
        """Whether a place is inside a token, whose halves have other pieces than the whole."""
        text = self._text
        return 0 < place < len(text) and not (text[place - 1].isspace() or text[place].isspace())
