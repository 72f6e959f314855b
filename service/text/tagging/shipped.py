"""Sentences by the service's own rules."""

from __future__ import annotations

from service.text import sentences


class OwnSplitter:
    """`service.text.sentences`.

    Against spaCy's rule-based sentencizer: abbreviations, initials and titles end no sentence, nor
    does a mark before a small letter, and a blank line ends one. Of the 450 sample passages 395
    are cut alike (1,627 sentences here, 1,648 there).
    """

    incremental = True

    def sentences(self, text: str) -> list[str]:
        found = (text[start:end].strip() for start, end in sentences(text))
        return [sentence for sentence in found if sentence]
