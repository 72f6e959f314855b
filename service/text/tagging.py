"""Content words of a text, and the ends of its sentences (METHODS.md §3.2, steps 4 and 7).

`open_tagger` and `open_splitter` open the settings' choice, once. HanTa and spaCy are in the extra
`tagger` and are imported when they are opened.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from service.text.sentences import sentences
from service.text.words import SPELT, STOP_WORDS, spelt_words

TaggerName = Literal["stopwords", "hanta", "spacy"]
SplitterName = Literal["own", "sentencizer", "model"]
_NEEDS = {"hanta": ("HanTa",), "spacy": ("spacy", "en_core_web_sm")}
_NEEDS |= {"sentencizer": ("spacy",), "model": ("spacy", "en_core_web_sm")}
_SOURCES = {
    "HanTa": "pip install '.[tagger]' in the checkout",
    "spacy": "pip install '.[tagger]' in the checkout",
    "en_core_web_sm": "python -m spacy download en_core_web_sm",
}
# Tags of the BNC's C5 set and the classes they stand for; forms of be, have and do and the modal
# verbs (VB., VD., VH., VM0) are auxiliaries to spaCy's model in nearly all places, so to us.
HANTA_CLASSES = {
    "NN": "NOUN", "NN0": "NOUN", "NN1": "NOUN", "NN2": "NOUN",
    "NP0": "PROPN",
    "AJ0": "ADJ", "AJC": "ADJ", "AJS": "ADJ", "ORD": "ADJ",
    "VVB": "VERB", "VVD": "VERB", "VVG": "VERB", "VVI": "VERB", "VVN": "VERB", "VVZ": "VERB",
    "CRD": "NUM",
}  # fmt: skip
_TOKEN = re.compile(rf"{SPELT}|[^\w\s]|_")
SPACY_MODEL = "en_core_web_sm"
SPACY_CONTENT = frozenset({"NOUN", "ADJ", "VERB", "PROPN", "NUM"})


class Tagger(Protocol):
    def content_words(self, text: str) -> frozenset[str]:
        """Return the tokens of `text`, as spelt, that are NOUN, ADJ, VERB, PROPN or NUM."""


class Splitter(Protocol):
    """`incremental`: a sentence that is followed by a whole word of the next one can no longer
    change.
    """

    incremental: bool

    def sentences(self, text: str) -> list[str]:
        """Return the sentences without surrounding white space; none is empty."""


def missing(name: TaggerName | SplitterName) -> str | None:
    """Return what is not installed and how to install it; None if nothing is missing."""
    for module in _NEEDS.get(name, ()):
        if find_spec(module) is None:
            return f"{name!r} needs {module} ({_SOURCES[module]})"
    return None


@cache
def open_tagger(name: TaggerName) -> Tagger:
    """Open a tagger. May take a second and read a model from disk: call it in a thread."""
    if name == "hanta":
        return HantaTagger()
    return _spacy_model() if name == "spacy" else StopwordTagger()


@cache
def open_splitter(name: SplitterName) -> Splitter:
    """Open a splitter, as `open_tagger`."""
    if name == "sentencizer":
        return Sentencizer()
    return _spacy_model() if name == "model" else OwnSplitter()


@cache
def _spacy_model() -> SpacyModel:
    return SpacyModel()


class StopwordTagger:
    """The paper's s_i (METHODS.md §3.4 #4) instead of parts of speech."""

    def content_words(self, text: str) -> frozenset[str]:
        words = spelt_words(text)
        return frozenset(w for w in words if w.casefold().removesuffix("'s") not in STOP_WORDS)


class HantaTagger:
    """Loads its model when it is created, which takes half a second."""

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
            if tag in HANTA_CLASSES and token[0].isalnum()
        )


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


class SpacyModel:
    """Tagger and splitter of the official code, if the model is installed.

    Its sentences come from a parser, so a later word can change an earlier end.
    """

    incremental = False

    def __init__(self) -> None:
        import spacy  # noqa: PLC0415

        self._read: Any = lru_cache(maxsize=256)(spacy.load(SPACY_MODEL))

    def content_words(self, text: str) -> frozenset[str]:
        return frozenset(token.text for token in self._read(text) if token.pos_ in SPACY_CONTENT)

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
