"""Letters with marks as plain ones, for BM25 servers whose analysis does not fold them.

tantivy folds in its analysis; Elasticsearch's `english` analyzer does not, and its `asciifolding`
filter is not everywhere. So what is indexed and what is asked are folded here.
"""

from __future__ import annotations

import re
import unicodedata

_LETTERS = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "ł": "l", "Ł": "L", "þ": "th", "Þ": "TH",
    "ı": "i", "ħ": "h", "Ħ": "H",
}  # fmt: skip


class _Folded(dict[int, str]):
    """For str.translate: each character's fold, worked out at its first use."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        plain = "".join(c for c in unicodedata.normalize("NFKD", letter) if c.isascii())
        marks = [c for c in unicodedata.normalize("NFKD", letter) if not c.isascii()]
        whole = plain.isalnum() and all(unicodedata.category(c)[0] == "M" for c in marks)
        self[code] = plain if whole else letter
        return self[code]


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_FOLDED = _Folded({ord(letter): plain for letter, plain in _LETTERS.items()})


def fold(text: str) -> str:
    """`Bellíni` to `Bellini`; what has no plain letters (`北京`) stays."""
    if text.isascii():
        return text
    # Most letters are plain: to look each of the others up costs less than to translate all.
    return _NOT_ASCII.sub(_plain, unicodedata.normalize("NFC", text))


def _plain(letter: re.Match[str]) -> str:
    return _FOLDED[ord(letter[0])]
