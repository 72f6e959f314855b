"""Content words of a text, and the ends of its sentences (METHODS.md §3.2, steps 4 and 7).

`open_tagger` and `open_splitter` open the settings' choice, once. HanTa and spaCy are in the extra
`tagger` and are imported when they are opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Literal

from service.text.sentences import sentences
from service.text.words import SPELT, STOP_WORDS, spelt_words

TaggerName = Literal["stopwords", "hanta", "spacy"]
SplitterName = Literal["own", "model"]
_NEEDS = {"hanta": ("HanTa",), "spacy": ("spacy", "en_core_web_sm")}
_NEEDS |= {"model": ("spacy", "en_core_web_sm")}
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


# Returns the tokens of a text, as spelt, that are NOUN, ADJ, VERB, PROPN or NUM.
Tagger = Callable[[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Splitter:
    """`sentences` returns the sentences of a text without surrounding white space; none is empty.
    `incremental`: a sentence that is followed by a whole word of the next one can no longer change.
    """

    sentences: Callable[[str], list[str]]
    incremental: bool = True


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
        return _hanta()
    if name == "spacy":
        read = _spacy_model()
        return lambda text: frozenset(t.text for t in read(text) if t.pos_ in SPACY_CONTENT)
    return _no_stop_words


@cache
def open_splitter(name: SplitterName) -> Splitter:
    """Open a splitter, as `open_tagger`. `own` is `service.text.sentences`, and `model` the parser
    of the official code, by which a later word can change an earlier end."""
    if name == "own":
        return Splitter(lambda text: _stripped(text[a:b] for a, b in sentences(text)))
    read = _spacy_model()
    return Splitter(lambda text: _stripped(s.text for s in read(text).sents), incremental=False)


def _stripped(texts: Iterable[str]) -> list[str]:
    return [stripped for text in texts if (stripped := text.strip())]


def _no_stop_words(text: str) -> frozenset[str]:
    """The paper's s_i (METHODS.md §3.4 #4) instead of parts of speech."""
    words = spelt_words(text)
    return frozenset(w for w in words if w.casefold().removesuffix("'s") not in STOP_WORDS)


def _hanta() -> Tagger:
    from HanTa.HanoverTagger import HanoverTagger  # noqa: PLC0415

    model: Any = HanoverTagger("morphmodel_en.pgz")

    @lru_cache(maxsize=1024)
    def content_words(text: str) -> frozenset[str]:
        tokens = _TOKEN.findall(text)
        tags = model.tag_sent(tokens, taglevel=0) if tokens else []
        return frozenset(
            token
            for token, tag in zip(tokens, tags, strict=True)
            if tag in HANTA_CLASSES and token[0].isalnum()
        )

    return content_words


@cache
def _spacy_model() -> Callable[[str], Any]:
    import spacy  # noqa: PLC0415

    return lru_cache(maxsize=256)(spacy.load(SPACY_MODEL))
