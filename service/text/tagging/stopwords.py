"""Content words without a tagger: all that are no stop words. Needs nothing."""

from __future__ import annotations

import re

from service.text import STOP_WORDS

_WORD = re.compile(r"[^\W_]+(?:[-'’.,][^\W_]+)*")


class StopwordTagger:
    """The paper's s_i (METHODS.md §3.4 #4) in the place of parts of speech."""

    def content_words(self, text: str) -> frozenset[str]:
        words = _WORD.findall(text)
        return frozenset(w for w in words if w.casefold().removesuffix("'s") not in STOP_WORDS)
