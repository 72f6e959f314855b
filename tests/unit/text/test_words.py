"""The words of a text, as labels count them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text import content_words, sentences
from service.text.tagging import missing, open_splitter, open_tagger
from service.text.words import word_spans
from tests.conftest import unavailable


def cut(text: str) -> list[str]:
    return [word.text for word in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("born in Catania, Sicily.", ["born", "in", "Catania", "Sicily", "."]),
        ("Bellini's opera", ["Bellini", "'s", "opera"]),
        ("they don't, can’t", ["they", "do", "n't", "ca", "n’t"]),
        ("J. S. Bach of the U.S. team", ["J.", "S.", "Bach", "of", "the", "U.S.", "team"]),
        ("1,000.5 km at 10:30", ["1,000.5", "km", "at", "10:30"]),
        ("well-known (1831)", ["well", "-", "known", "(", "1831", ")"]),
        ("O'Brien", ["O'Brien"]),
        ("", []),
        (" , ", []),
    ],
)
def test_words_are_cut_as_plain_english_is(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


@given(st.text())
def test_a_word_is_where_it_says_and_nothing_but_space_and_commas_is_lost(text: str) -> None:
    found = word_spans(text)
    rest, end = "", 0
    for word in found:
        assert text[word.start : word.end] == word.text
        rest += text[end : word.start]
        end = word.end
    assert not (rest + text[end:]).replace(",", "").strip()


@given(st.text(alphabet=st.sampled_from("aBns'’.,-:1 (tT_")) | st.text())
def test_words_joined_by_spaces_are_cut_alike(text: str) -> None:
    assert cut(" ".join(cut(text))) == cut(text)


# ----


def cut_sentences(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("One.", ["One."]),
        ("He came. He saw! Who won?", ["He came.", "He saw!", "Who won?"]),
        ("Dr. J. R. Smith met Mr. Jones. They spoke.",
         ["Dr. J. R. Smith met Mr. Jones.", "They spoke."]),
        ("She lives in the U.S. The house is old.", ["She lives in the U.S.", "The house is old."]),
        ("The U.S. Army left St. Maurice's Abbey.", ["The U.S. Army left St. Maurice's Abbey."]),
        ("Apple Inc. Chief Tim Cook spoke.", ["Apple Inc. Chief Tim Cook spoke."]),
        ("It has No. 5 on it. He said no. Then he left.",
         ["It has No. 5 on it.", "He said no.", "Then he left."]),
        ("Pi is 3.14 or so. Yes.", ["Pi is 3.14 or so.", "Yes."]),
        ('"Stop." He stopped. (He did.) So.', ['"Stop."', "He stopped.", "(He did.)", "So."]),
        ("Wait... what? e.g. this, i.e. that.", ["Wait... what? e.g. this, i.e. that."]),
        ("Title\n\nBody one. Body two.", ["Title", "Body one.", "Body two."]),
        ("a wrapped\nline stays. Next", ["a wrapped\nline stays.", "Next"]),
        ("北京是首都。上海不是！", ["北京是首都。", "上海不是！"]),
        ("Prices.\nitem: a; price: 5 g.\nItem: b; Price: 6 g.\nitem: c; price: 7.\n",
         ["Prices.", "item: a; price: 5 g.", "Item: b; Price: 6 g.", "item: c; price: 7."]),
        ("He was born in 1931. 17 years later he died.",
         ["He was born in 1931.", "17 years later he died."]),
    ],
)  # fmt: skip
def test_sentences(text: str, expected: list[str]) -> None:
    assert cut_sentences(text) == expected


@given(st.text(alphabet=st.sampled_from("aB. ?!\n\t\"'()…。éДr1")) | st.text())
def test_sentences_partition_the_text(text: str) -> None:
    spans = sentences(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert all(start < end for start, end in spans)


@pytest.mark.parametrize(
    "unit", [".", ". ", " ", "\n", "Dr. ", "a. ", '."', "。", "U.S. ", "a: b; c: d. ", ".\na: b; "]
)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    text = unit * (300_000 // len(unit)) + "x"
    started = time.process_time()  # a busy machine takes many times that
    sentences(text)
    assert time.process_time() - started < 5


def test_content_words() -> None:
    assert content_words("Who is the composer of Bellini's opera, in 1831?") == {
        "composer", "bellini", "opera", "1831",
    }  # fmt: skip
    assert content_words("") == set()
    assert content_words("The of and") == set()


# ----

TEXT = "He was born in Catania on 3 November 1801. Did Dr. Rossi sing? i think so. So ends it."


def opened(name: str) -> None:
    if lacking := missing(name):  # type: ignore[arg-type]
        unavailable("a tagger of the extra", lacking)


def test_stop_words_have_no_content() -> None:
    content = open_tagger("stopwords")(TEXT)
    assert {"born", "Catania", "November", "1801", "Rossi"} <= content
    assert content.isdisjoint({"He", "was", "in", "on", "Did", "i", "So"})
    assert open_tagger("stopwords")("") == frozenset()
    assert open_tagger("stopwords")("14,782 O'Neil's x-ray.") == frozenset(
        {"14,782", "O'Neil's", "x-ray"}
    )


def test_hanta_s_tags_are_mapped() -> None:
    opened("hanta")
    content = open_tagger("hanta")(TEXT)
    assert {"born", "Catania", "3", "November", "1801", "Rossi", "sing", "think"} <= content
    assert content.isdisjoint({"He", "was", "in", "on", "Did", "so", "So"})
    assert open_tagger("hanta")("") == frozenset()
    assert "third" in open_tagger("hanta")("the third old city")


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
    assert {"born", "Catania", "1801"} <= model(TEXT)
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
