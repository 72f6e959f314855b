"""What a tagger and a splitter do (METHODS.md §3.2, steps 4 and 7)."""

from __future__ import annotations

from typing import Protocol


class Tagger(Protocol):
    def content_words(self, text: str) -> frozenset[str]:
        """The tokens of `text`, as spelt, that are NOUN, ADJ, VERB, PROPN or NUM."""


class Splitter(Protocol):
    """`incremental`: a sentence that a whole word of the next one follows can no longer change,
    whatever comes after."""

    incremental: bool

    def sentences(self, text: str) -> list[str]:
        """The sentences without the white space around them; none is empty."""
