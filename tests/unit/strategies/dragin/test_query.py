from __future__ import annotations

import pytest

from service.engines.signals import AttentionRow, ContextRows, ScoredToken, Scoring
from service.strategies.rind import (
    Hit,
    QueryContext,
    ScoredWord,
    Word,
    generation_context,
    keep_content_words,
    last_tokens,
    query_text,
    text_context,
    word_attention,
)
from tests.stubs.signal_engine import spans_in
from tests.unit.strategies.dragin.drafts import TAGGER, pieces_of, spans_of, words_of


def hit_of(previous: str, sentence: str, *flagged: int) -> Hit:
    words = tuple(ScoredWord(word, 0.1, 0.1, 0.1) for word in words_of(sentence))
    return Hit(previous, sentence, words, tuple(n in flagged for n in range(len(words))))


def scoring_of(text: str) -> Scoring:
    """A start token, then a token a word."""
    spans = [(0, 0), *spans_of(pieces_of(text))]
    return Scoring(tuple(ScoredToken(n, span, 0, 0) for n, span in enumerate(spans)))


def test_the_worked_example_s_query() -> None:
    question = "In which city was the composer of the opera Norma born?"
    hit = hit_of("Norma was composed by Vincenzo Bellini.", "He was born in Palermo.", 4)
    query = query_text(question, "", hit)
    context = text_context(query, scoring_of(query.text))
    palermo = next(iter(context.hits))
    assert context.words[palermo].text == "Palermo."
    row = AttentionRow(context.words[palermo].first, tuple([1.0] * context.words[palermo].first))
    content = TAGGER.content_words(query.text)
    found = keep_content_words(context, word_attention(context, [row]), content, 25)
    assert found == "city composer opera Norma born? Norma composed Vincenzo Bellini. born"


def test_a_hit_whose_place_is_no_word_s_is_skipped() -> None:
    hit = hit_of("", "In Palermo today.", 1, 2)
    query = query_text("Q", "T", hit)
    scoring = scoring_of(query.text)
    merged = [
        *scoring.tokens[:-2],
        ScoredToken(9, (scoring.tokens[-2].span[0], len(query.text)), 0, 0),
    ]
    context = text_context(query, Scoring(tuple(merged)))
    assert context.hits == frozenset()
    assert word_attention(context, []) is None


def test_the_most_attended_words_are_kept_in_their_order() -> None:
    words = [
        Word(text, (n, n + 1), n, n)
        for n, text in enumerate(["Anna", "the", "Berta", "Carla", "Dora"])
    ]
    context = QueryContext(words, frozenset({4}), range(5))
    content = frozenset({"Anna", "Berta", "Carla", "Dora"})
    assert keep_content_words(context, [0.1, 0.9, 0.3, 0.2, 0.8], content, 2) == "Berta Carla"
    assert keep_content_words(context, [0.2, 0.9, 0.2, 0.2, 0.8], content, 2) == "Anna Berta"
    assert keep_content_words(context, None, content, 2) == "Anna Berta"
    assert keep_content_words(context, None, frozenset(), 2) == ""


def test_inside_a_generation_only_the_words_of_c_count() -> None:
    prompt, draft = "Demo line\nQuestion: Who sang?\nAnswer:", " He sang Norma. Then"
    text = prompt + draft
    spans = [(0, 0), *((a, b) for a, b in spans_of(pieces_of(text)))]
    question = (text.index("Who"), text.index("Who") + len("Who sang?"))
    sentence = (len(prompt), len(prompt) + len(" He sang Norma."))
    norma = next(n for n, (a, b) in enumerate(spans) if text[a:b] == " Norma.")
    row = AttentionRow(norma, tuple([1 / norma] * norma))
    context = generation_context(
        ContextRows(tuple(spans), (row,)), text, [question, sentence], [norma]
    )
    assert [word.text for word in context.words][-3:] == ["He", "sang", "Norma."]
    assert [context.words[n].text for n in context.hits] == ["Norma."]
    weights = word_attention(context, [row])
    assert weights is not None
    assert sum(weights) == pytest.approx(1.0)
    assert all(text[slice(*word.span)] == word.text for word in context.words)


def test_the_last_tokens_of_a_text() -> None:
    text = "a bb c ddd"
    assert last_tokens(text, spans_in(text), 2) == "c ddd"
    assert last_tokens(text, spans_in(text), 4) == text
    assert last_tokens("", (), 4) == ""
