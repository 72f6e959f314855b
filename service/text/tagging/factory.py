"""From the names in the settings to a tagger and a splitter, each made once and kept."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from service.text.tagging.base import Splitter, Tagger

if TYPE_CHECKING:
    from service.text.tagging.spacy_model import SpacyModel

TaggerName = Literal["stopwords", "hanta", "spacy"]
SplitterName = Literal["own", "sentencizer", "model"]
_NEEDS = {"hanta": ("HanTa",), "spacy": ("spacy", "en_core_web_sm")}
_NEEDS |= {"sentencizer": ("spacy",), "model": ("spacy", "en_core_web_sm")}
_SOURCES = {
    "HanTa": "pip install 'revelator[tagger]'",
    "spacy": "pip install 'revelator[tagger]'",
    "en_core_web_sm": "python -m spacy download en_core_web_sm",
}


def missing(name: TaggerName | SplitterName) -> str | None:
    """What is not installed and how it would be; None where nothing is missing."""
    for module in _NEEDS.get(name, ()):
        if find_spec(module) is None:
            return f"{name!r} needs {module} ({_SOURCES[module]})"
    return None


@cache
def open_tagger(name: TaggerName) -> Tagger:
    """May take a second and read a model from disk: call it in a thread."""
    if name == "hanta":
        from service.text.tagging.hanta import HantaTagger  # noqa: PLC0415

        return HantaTagger()
    if name == "spacy":
        return _model()
    from service.text.tagging.stopwords import StopwordTagger  # noqa: PLC0415

    return StopwordTagger()


@cache
def open_splitter(name: SplitterName) -> Splitter:
    """As `open_tagger`."""
    if name == "sentencizer":
        from service.text.tagging.spacy_model import Sentencizer  # noqa: PLC0415

        return Sentencizer()
    if name == "model":
        return _model()
    from service.text.tagging.shipped import OwnSplitter  # noqa: PLC0415

    return OwnSplitter()


@cache
def _model() -> SpacyModel:
    from service.text.tagging.spacy_model import SpacyModel  # noqa: PLC0415

    return SpacyModel()
