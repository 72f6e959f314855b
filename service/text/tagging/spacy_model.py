"""spaCy: its English model's tags and sentences, and its rule-based sentencizer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MODEL = "en_core_web_sm"
CONTENT = frozenset({"NOUN", "ADJ", "VERB", "PROPN", "NUM"})


class SpacyModel:
    """Tagger and splitter of the official code, where the model is installed.

    Its sentences come from a parser, so a later word can change an earlier end.
    """

    incremental = False

    def __init__(self) -> None:
        import spacy  # noqa: PLC0415

        self._read: Any = lru_cache(maxsize=256)(spacy.load(MODEL))

    def content_words(self, text: str) -> frozenset[str]:
        return frozenset(token.text for token in self._read(text) if token.pos_ in CONTENT)

    def sentences(self, text: str) -> list[str]:
        return _stripped(self._read(text))


class Sentencizer:
    """spaCy's rules: a sentence ends at `.`, `!`, `?` and their like in any script."""

    incremental = True

    def __init__(self) -> None:
        import spacy  # noqa: PLC0415

        self._read: Any = spacy.blank("en")
        self._read.add_pipe("sentencizer")

    def sentences(self, text: str) -> list[str]:
        return _stripped(self._read(text))


def _stripped(document: Any) -> list[str]:
    found = (sentence.text.strip() for sentence in document.sents)
    return [sentence for sentence in found if sentence]
