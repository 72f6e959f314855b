from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text import content_words, sentences, shared_words


def cut(text: str) -> list[str]:
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
        ("He was born in 1931. 17 years later he died.",
         ["He was born in 1931.", "17 years later he died."]),
    ],
)  # fmt: skip
def test_sentences(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


@given(st.text(alphabet=st.sampled_from("aB. ?!\n\t\"'()…。éДr1")) | st.text())
def test_sentences_partition_the_text(text: str) -> None:
    spans = sentences(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert all(start < end for start, end in spans)


@pytest.mark.parametrize("unit", [".", ". ", " ", "\n", "Dr. ", "a. ", '."', "。", "U.S. "])
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


@given(st.text(), st.text())
def test_shared_words_are_content_words_of_both(text: str, other: str) -> None:
    for words in (content_words(other), content_words(text[::2]), content_words(text)):
        assert shared_words(text, words) == content_words(text) & words


def test_a_part_of_a_word_is_not_shared() -> None:
    assert shared_words("Bellini's opera", {"bell", "bellini", "opera", "era"}) == {
        "bellini", "opera",
    }  # fmt: skip
