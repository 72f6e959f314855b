"""Parts of speech by HanTa, the Hanover Tagger (extra `tagger`; LGPL, English model inside)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

# Tags of the BNC's C5 set and the classes they stand for; forms of be, have and do and the modal
# verbs (VB., VD., VH., VM0) are auxiliaries to spaCy's model in nearly all places, so to us.
CLASSES = {
    "NN": "NOUN", "NN0": "NOUN", "NN1": "NOUN", "NN2": "NOUN",
    "NP0": "PROPN",
    "AJ0": "ADJ", "AJC": "ADJ", "AJS": "ADJ", "ORD": "ADJ",
    "VVB": "VERB", "VVD": "VERB", "VVG": "VERB", "VVI": "VERB", "VVN": "VERB", "VVZ": "VERB",
    "CRD": "NUM",
}  # fmt: skip
_TOKEN = re.compile(r"[^\W_]+(?:[-'’.,][^\W_]+)*|[^\w\s]|_")


class HantaTagger:
    """Loads its model, which takes half a second, when it is made."""

    def __init__(self) -> None:
        from HanTa.HanoverTagger import HanoverTagger  # noqa: PLC0415

        self._model: Any = HanoverTagger("morphmodel_en.pgz")
        self._content = lru_cache(maxsize=1024)(self._tag)

    def content_words(self, text: str) -> frozenset[str]:
        return self._content(text)

    def _tag(self, text: str) -> frozenset[str]:
        tokens = _TOKEN.findall(text)
        tags = self._model.tag_sent(tokens, taglevel=0) if tokens else []
        return frozenset(
            token
            for token, tag in zip(tokens, tags, strict=True)
            if tag in CLASSES and token[0].isalnum()
        )
