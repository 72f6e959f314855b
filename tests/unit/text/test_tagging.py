from __future__ import annotations

import pytest

from service.text.tagging import missing, open_splitter, open_tagger
from tests.conftest import unavailable

TEXT = "He was born in Catania on 3 November 1801. Did Dr. Rossi sing? i think so. So ends it."


def opened(name: str) -> None:
    if lacking := missing(name):  # type: ignore[arg-type]
        unavailable("a tagger of the extra", lacking)


def test_stop_words_have_no_content() -> None:
    content = open_tagger("stopwords").content_words(TEXT)
    assert {"born", "Catania", "November", "1801", "Rossi"} <= content
    assert content.isdisjoint({"He", "was", "in", "on", "Did", "i", "So"})
    assert open_tagger("stopwords").content_words("") == frozenset()
    assert open_tagger("stopwords").content_words("14,782 O'Neil's x-ray.") == frozenset(
        {"14,782", "O'Neil's", "x-ray"}
    )


def test_hanta_s_tags_are_mapped() -> None:
    opened("hanta")
    content = open_tagger("hanta").content_words(TEXT)
    assert {"born", "Catania", "3", "November", "1801", "Rossi", "sing", "think"} <= content
    assert content.isdisjoint({"He", "was", "in", "on", "Did", "so", "So"})
    assert open_tagger("hanta").content_words("") == frozenset()
    assert "third" in open_tagger("hanta").content_words("the third old city")


def test_our_sentences() -> None:
    assert open_splitter("own").sentences(TEXT) == [
        "He was born in Catania on 3 November 1801.",
        "Did Dr. Rossi sing? i think so.",
        "So ends it.",
    ]
    assert open_splitter("own").sentences(" \n ") == []
    assert open_splitter("own").sentences("One.\n\nTwo") == ["One.", "Two"]


def test_spacy_s_model() -> None:
    pytest.importorskip("en_core_web_sm", reason="spaCy's model en_core_web_sm is not installed")
    model = open_tagger("spacy")
    assert {"born", "Catania", "1801"} <= model.content_words(TEXT)
    assert not open_splitter("model").incremental


def test_a_sentence_that_a_whole_word_follows_stays() -> None:
    """What `incremental` promises, at every place where a text may be cut."""
    splitter = open_splitter("own")
    assert splitter.incremental
    for text in (
        TEXT,
        "A. B. Smith Jr. So he said. Mr. X (d. 1801) e.g. this. \n\nEnd",
        "a.b c. D",
    ):
        whole = splitter.sentences(text)
        for place, letter in enumerate(text):
            if letter == " ":
                complete = splitter.sentences(text[:place])[:-1]
                assert complete == whole[: len(complete)]


def test_what_is_missing_is_named_with_how_to_get_it() -> None:
    assert missing("stopwords") is None
    assert missing("own") is None
    lacking = missing("model")
    assert lacking is None or "en_core_web_sm" in lacking or ".[tagger]" in lacking
