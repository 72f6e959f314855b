"""In which language texts are, as far as it matters for the analysis of their words (BM25)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, get_args

from service.retrieval.base import Analysis
from service.retrieval.stores.query_text import paired
from service.text.words import letter_words

TEXTS, CHARACTERS = 500, 2_000  # of a first batch and of each of its texts that are read
FEWEST: Final = 5  # common words of the language
LEAST: Final = 0.05  # share of them of all words
TIMES: Final = 3  # as many as of any other language
_COMMON: Final = {  # words; those of several languages do not count
    "arabic": "في على إلى التي الذي عن مع هذا هذه كان كانت أن أو بعد بين كما ذلك قبل خلال",
    "danish": "af ikke blev også efter mange hvor nogle mellem meget siden",
    "dutch": "het een van zijn werd voor niet ook worden naar bij deze tussen heeft",
    "english": "the of and by was that with from were which this are their has have been not",
    "finnish": "ja oli myös joka mutta sekä hänen jotka mukaan sitä kun vuonna ovat että hän",
    "french": "les et des est une dans du pour qui par sur pas sont avec ses aux cette été",
    "german": "der die und das den von mit ist dem auf für nicht wurde eine sich auch als wird",
    "greek": "και το να του της με για που από των την είναι τον τα στην στο ήταν",
    "hungarian": "az és hogy nem egy volt meg vagy mint ez azonban után csak számára",
    "italian": "il di che è della per dei sono gli anche nel alla delle dal più stato",
    "norwegian": "av ikke ble også etter mange hvor noen mellom mye siden",
    "portuguese": "do da em os uma dos ao não na foi são das pela pelo mais também às",
    "romanian": "și în pe din care este cu mai fost sunt lui către după sau pentru ale",
    "russian": "и в на что это как был была было были также для из после которые или чтобы по",
    "spanish": "el los y las del por una con fue para como su más pero esta sus entre",
    "swedish": "och att som är av på inte till från också efter när eller sedan mycket blev",
    "turkish": "ve bir bu için olarak olan ile daha sonra gibi kadar tarafından ise göre",
    # Without an analysis, so that they are not taken for one of the above.
    "bulgarian": "и в на се са със който от за като през",
    "catalan": "el els amb per va del més una les que i van ser",
    "ukrainian": "в на та що від який які було за його",
}


def _own_words() -> dict[str, str]:
    """Return the language of each word that only one language has."""
    counted = Counter(word for words in _COMMON.values() for word in words.split())
    return {
        word: language
        for language, words in _COMMON.items()
        for word in words.split()
        if counted[word] == 1
    }


_OWN: Final = _own_words()


def analysis_for(texts: Iterable[str]) -> Analysis:
    """Return the language of texts if it is certain, else `english`, which serves mixed and other
    languages: words folded, those of scripts without spaces in pairs of characters."""
    total, found = 0, Counter[str]()
    for text, _ in zip(texts, range(TEXTS), strict=False):
        words = letter_words(paired(text[:CHARACTERS].lower()))
        total += len(words)
        found.update(_OWN[word] for word in words if word in _OWN)
    (best, most), (_, other) = [*found.most_common(2), ("", 0), ("", 0)][:2]
    sure = most >= max(FEWEST, LEAST * total, TIMES * other)
    return next(
        (analysis for analysis in get_args(Analysis) if sure and analysis == best), "english"
    )
