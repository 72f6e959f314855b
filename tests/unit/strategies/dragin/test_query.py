from __future__ import annotations

import pytest

from service.engines.signals import AttentionRow, ContextRows
from service.strategies.rind import (
    Hit,
    ScoredWord,
    generation_context,
    word_attention,
)
from tests.unit.strategies.dragin.drafts import pieces_of, spans_of, words_of


def hit_of(previous: str, sentence: str, *flagged: int) -> Hit:
    words = tuple(ScoredWord(word, 0.1, 0.1, 0.1) for word in words_of(sentence))
    return Hit(previous, sentence, words, tuple(n in flagged for n in range(len(words))))


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
