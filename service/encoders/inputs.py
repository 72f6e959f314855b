"""The exact inputs of the two encoders (METHODS.md §4.3), in training and when served.

Words are tokenised one by one, so that no text can become a special token: `words` separates the
characters of those. Nor can a text imitate a marker of the filter's sentence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from service.text.words import word_spans

LABELER_PIECES: Final = 384
FILTER_PIECES: Final = 256  # the official code trains at 256 and runs at 128 (METHODS.md §4.4 #5)
QUERY_MARKER: Final = "Query:"
INFO_MARKER: Final = "Info:"
INFO_SEPARATOR: Final = ";"
_MARKED: Final = ("query", "info")
_UNSEEN: Final = frozenset({"Mn", "Cc", "Cf", "Cn", "Co", "Cs"})  # categories of characters
NO_WORD: Final = -1


@dataclass(slots=True)
class Encoded:
    """One input, without padding. All fields except `words` have one element per piece.

    `types` is 1 for a passage and the separator behind it, else 0. `words` are the words that can
    be marked: those of the passage, or those of the query and the infos. `word_of` is the index of
    a piece's word, or NO_WORD for special tokens, markers, and the query of a labeler.
    """

    ids: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    word_of: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def add(self, spelt: Sequence[SpeltWord], kind: int = 0, *, markable: bool = False) -> Encoded:
        for word in spelt:
            self.ids += word.ids
            self.word_of += [len(self.words) if markable else NO_WORD] * len(word.ids)
            self.types += [kind] * len(word.ids)
            if markable:
                self.words.append(word.text)
        return self

    def cut(self, most: int) -> Encoded:
        """Return the first `most` pieces, without a final [SEP], as in the official code."""
        for pieces in (self.ids, self.types, self.word_of):
            del pieces[most:]
        return self


class SpeltWord(NamedTuple):
    """A word and its pieces."""

    text: str
    ids: list[int]


def passage_text(title: str, text: str) -> str:
    """The text form of a passage (METHODS.md §4.3): `Title: body`."""
    return f"{title}: {text}" if title else text


def encode_passages(
    tokenizer: Any, query: str, passages: Sequence[str], most: int = LABELER_PIECES
) -> list[Encoded]:
    """Return the inputs of LABEL, `[CLS]` query `[SEP]` passage `[SEP]`, each cut to `most` pieces.

    `tokenizer` belongs to the library `tokenizers` and has the tokens [CLS] and [SEP].
    """
    start, end = _frame(tokenizer)
    asked, *spelt = _spell(tokenizer, [_cut(text) for text in (query, *passages)])
    before = [start, *asked, end]
    return [
        Encoded().add(before).add(passage, 1, markable=True).add([end], 1).cut(most)
        for passage in spelt
    ]


def encode_query(
    tokenizer: Any, query: str, infos: Sequence[str], most: int = FILTER_PIECES
) -> Encoded:
    """Return the input of FILTER, `[CLS] Query: … Info: …; Info: … [SEP]`, with at most `most`
    pieces.

    If it is too long, the infos lose their last words, the longest info first (METHODS.md §6 #27).
    A query that is too long by itself is cut at its end.
    """
    start, end = _frame(tokenizer)
    marks = [_cut(mark) for mark in (QUERY_MARKER, INFO_MARKER, INFO_SEPARATOR)]
    data = [markable_words(text) for text in (query, *infos)]
    named, info_mark, parting, asked, *spelt = _spell(tokenizer, [*marks, *data])
    frame = (
        2 + _size(named) + len(spelt) * _size(info_mark) + max(len(spelt) - 1, 0) * _size(parting)
    )
    _shorten(spelt, most - frame - _size(asked))
    encoded = Encoded().add([start, *named]).add(asked, markable=True)
    for place, info in enumerate(spelt):
        encoded.add([*(parting if place else ()), *info_mark]).add(info, markable=True)
    return encoded.add([end]).cut(most)


def markable_words(text: str) -> list[str]:
    """Return the words of a query or an info that occur in the input of FILTER, without colons that
    would imitate a marker.

    The `words` of `encode_query` are those of the query, followed by those of each info.
    """
    kept: list[str] = []
    for word in _cut(text):
        forges = word == ":" and kept and _bare(kept[-1]).endswith(_MARKED)
        if not forges and not _is_unseen(word):
            kept.append(word)
    return kept


def _bare(word: str) -> str:
    """Remove case and accents, as an uncased tokenizer does."""
    letters = unicodedata.normalize("NFD", word.casefold())
    return "".join(letter for letter in letters if not _is_unseen(letter))


def _is_unseen(word: str) -> bool:
    """Whether a word is a lone accent, control or format character, which has no word piece."""
    return len(word) == 1 and unicodedata.category(word) in _UNSEEN


def marked_text(encoded: Encoded, margins: Sequence[float]) -> str:
    """Return the marked words, in their order.

    `margins` has one element per piece, the logit of 1 minus that of 0; it may be longer, because
    outputs are padded. A word is marked if the sum over its pieces is above 0, since all pieces of
    a word share its label in training. (The official code decodes single pieces, and so searches
    for fragments of names.)
    """
    sums = [0.0] * len(encoded.words)
    for word, margin in zip(encoded.word_of, margins, strict=False):
        if word != NO_WORD:
            sums[word] += margin
    return " ".join(word for word, sum_ in zip(encoded.words, sums, strict=True) if sum_ > 0)


def _shorten(infos: list[list[SpeltWord]], room: int) -> None:
    sizes = [_size(info) for info in infos]
    while sum(sizes) > room and any(infos):
        longest = max(range(len(infos)), key=sizes.__getitem__)
        sizes[longest] -= len(infos[longest].pop().ids)


def _size(spelt: Sequence[SpeltWord]) -> int:
    return sum(len(word.ids) for word in spelt)


def _frame(tokenizer: Any) -> list[SpeltWord]:
    """Return the special tokens before and after an input."""
    return [SpeltWord("", [tokenizer.token_to_id(mark)]) for mark in ("[CLS]", "[SEP]")]


def _cut(text: str) -> list[str]:
    return [word.text for word in word_spans(text)]


def _spell(tokenizer: Any, texts: Sequence[list[str]]) -> list[list[SpeltWord]]:
    """Return the words of each text with their pieces, all tokenised in one call."""
    encodings = tokenizer.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
    return [_by_word(*pair) for pair in zip(texts, encodings, strict=True)]


def _by_word(cut: Sequence[str], encoding: Any) -> list[SpeltWord]:
    spelt = [SpeltWord(word, []) for word in cut]
    for piece, word in zip(encoding.ids, encoding.word_ids, strict=True):
        spelt[word].ids.append(piece)
    return spelt
