"""Citations are exact substrings: the sentence that bears the answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.answer.events import RetrievedPassage
from service.answer.evidence import Evidence, bearing_sentence, cite
from service.core.domain import Passage, ScoredPassage
from service.text import content_words, sentences
from service.text.grounding import bears

TEXT = "Norma is an opera in two acts. It was composed by Vincenzo Bellini. Bellini died in 1835."


def found(passage_id: str, text: str, rank: int = 1) -> RetrievedPassage:
    return RetrievedPassage(passage_id=passage_id, title="T", text=text, rank=rank, score=1.0)


@pytest.mark.parametrize(
    ("metadata", "url", "page"),
    [
        ({"url": "https://example.org/a", "page": 3}, "https://example.org/a", 3),
        ({"url": ["a"], "page": "iv"}, None, None),
        ({"url": "x" * 3_000, "page": True}, None, None),
        ({}, None, None),
    ],
)
def test_a_citation_has_the_url_and_the_page_of_its_document(
    metadata: dict[str, Any], url: str | None, page: int | None
) -> None:
    hit = ScoredPassage(Passage("p", "T", TEXT, metadata), 1, 0.5)
    (citation,) = cite([Evidence("1", RetrievedPassage.of(hit), "Bellini", "Who?")])
    assert (citation.url, citation.page) == (url, page)


def test_no_passage_is_cited_twice_and_order_is_step_then_rank() -> None:
    evidence = [
        Evidence("1", found("p1", "One."), "a", "q"),
        Evidence("1", found("p2", "Two.", 2), "a", "q"),
        Evidence("2", found("p2", "Two."), "a", "q"),
        Evidence("2", found("p3", "Three.", 2), "a", "q"),
        Evidence("2", found("p4", " "), "a", "q"),
    ]
    cited = [(citation.passage_id, citation.step) for citation in cite(evidence)]
    assert cited == [("p1", "1"), ("p2", "1"), ("p3", "2")]


@given(st.text(min_size=1).filter(str.strip), st.text(), st.text())
def test_a_citation_is_always_an_exact_substring(text: str, answer: str, question: str) -> None:
    (citation,) = cite([Evidence("1", found("p", text), answer, question)])
    assert text[citation.start : citation.end] == citation.text
    assert citation.text.strip() == citation.text != ""


SENTENCE = st.lists(
    st.sampled_from(["Norma", "Bellini", "died", "acts", "in", "1835", "opera", "the", "Catania"]),
    min_size=1,
    max_size=6,
).map(lambda words: f"{' '.join(words)}. ")


@given(st.lists(SENTENCE, min_size=1, max_size=5).map("".join), SENTENCE, SENTENCE)
def test_it_bears_the_answer_then_shares_most_words_then_comes_first(
    text: str, answer: str, question: str
) -> None:
    def closeness(sentence: str) -> tuple[bool, int, int]:
        words = content_words(sentence)
        shared = words & content_words(answer)
        return bears(sentence, answer), len(shared), len(words & content_words(question))

    start, end = bearing_sentence(text, answer, question)
    whole = [text[begin:stop].strip() for begin, stop in sentences(text)]
    assert text[start:end] == max(whole, key=closeness)
