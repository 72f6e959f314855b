"""RIND's words and scores by hand (METHODS.md §3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from service.engines.signals import AttentionRow, ContextRows, ScoredToken, Scoring, Span
from service.strategies.dragin import OFFICIAL, DraftWatch
from service.strategies.rind import (
    Hit,
    QueryContext,
    find_end,
    find_token,
    generation_context,
    group_words,
    score_tokens,
    score_words,
    top_tokens,
    word_attention,
)
from tests.unit.strategies.dragin.drafts import (
    SPLITTER,
    TAGGER,
    pieces_of,
    spans_of,
    tokens_of,
    words_of,
)


def hit_of(
    text: str, attention: Sequence[float], entropies: Sequence[float], *, served: bool = False
) -> Hit | None:
    watch = DraftWatch(replace(OFFICIAL, served=served), TAGGER, SPLITTER)
    for token in tokens_of(pieces_of(text), entropies, [()] * len(attention)):
        watch.feed(token)
    scored = [ScoredToken(token.id, token.span, received)
              for token, received in zip(watch.signals, attention, strict=True)]  # fmt: skip
    return watch.judge_rest(Scoring(tuple(scored)))


def test_the_last_word_is_attended_to_as_much_as_the_average_word() -> None:
    """ "Palermo." is the word in doubt; its own full stop is all that can attend to it."""
    words = words_of("He was born in Palermo.")
    signals = (0.22, 0.18, 0.30, 0.15, 0.05), (0.40, 0.10, 0.30, 0.10, 1.10)
    plain = score_words(words, *signals)[4]
    assert (plain.attention, plain.score) == (0.05, pytest.approx(5 * 0.05 / 0.90 * 1.10))
    assert hit_of("He was born in Palermo.", *signals) is None

    weighed = score_words(words, *signals, weigh_last=True)
    assert weighed[4].attention == pytest.approx(0.85 / 4)
    assert weighed[4].score == pytest.approx(1.10)  # an average word's is its entropy
    assert weighed[0].score == pytest.approx(5 * 0.22 / (0.85 + 0.2125) * 0.40)
    hit = hit_of("He was born in Palermo.", *signals, served=True)
    assert hit is not None
    assert hit.strongest.word.text == "Palermo."

    heard = (0.22, 0.18, 0.30, 0.15, 0.60), (0.40, 0.10, 0.30, 0.10, 1.10)
    assert score_words(words, *heard, weigh_last=True) == score_words(words, *heard)


def test_the_filter_clears_words_but_not_the_trigger() -> None:
    text = "He was there. Norma sang."
    signals = (1, 1, 1, 1, 1), (0.1, 9, 0.1, 9, 0)
    hit = hit_of(text, *signals)
    assert hit is not None
    assert hit.sentence == "He was there."
    assert not any(hit.flags)
    assert hit.strongest.word.text == "was"

    gated = hit_of(text, *signals, served=True)
    assert gated is not None
    assert gated.sentence == "Norma sang."
    assert gated.flags == (True, False)


def test_the_last_word_is_never_looked_at() -> None:
    assert find_end("One. Two", words_of("One. Two"), 0) == 0


def words(pieces: list[str], spans: list[Span] | None = None) -> list[tuple[str, list[int]]]:
    grouped = group_words("".join(pieces), spans or spans_of(pieces))
    return [(word.text, list(word.tokens)) for word in grouped]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # Llama-2: the mark is a space of the piece; punctuation joins the word before it.
        (["Nor", "ma", " was", " sung", "."], [("Norma", [0, 1]), ("was", [2]), ("sung.", [3, 4])]),
        # A line break starts a word, and what follows without a mark joins it (id 13).
        (["No", ".", "\n", "Question", ":"], [("No.", [0, 1]), ("Question:", [2, 3, 4])]),
        # Llama-3: line breaks in one token, the space before the next word in its piece.
        (["a", ".\n\n", "So", " b"], [("a.\n\nSo", [0, 1, 2]), ("b", [3])]),
        # A lone mark is a word of nothing.
        (["a", " ", " b"], [("a", [0]), ("", [1]), ("b", [2])]),
        (["a", " b", ""], [("a", [0]), ("b", [1, 2])]),
        (["", "a"], [("a", [0, 1])]),
        ([" a"], [("a", [0])]),
        ([], []),
    ],
)
def test_a_word_starts_where_white_space_comes(
    pieces: list[str], expected: list[tuple[str, list[int]]]
) -> None:
    assert words(pieces) == expected


def test_tokenizers_that_leave_spaces_out_of_their_places_give_the_same_words() -> None:
    text = "In  which\ncity?"
    trimmed = [(0, 2), (4, 9), (10, 14), (14, 15)]
    assert [w.text for w in group_words(text, trimmed)] == ["In", "which", "city?"]


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


# ---- the profile `paper`: equations 3, 5 and 6, and the query of 3.2, token by token

TEXT = "He was born in Palermo and the sea."
SPANS: list[Span] = [(0, 2), (2, 6), (6, 11), (11, 14), (14, 18), (18, 22), (22, 26), (26, 30),
                     (30, 34), (34, 35)]  # fmt: skip
ATTENTION = [0.4, 0.2, 0.5, 0.1, 0.6, 0.3, 0.9, 0.9, 0.2, 0.0]
ENTROPY = [0.5, 0.5, 1.0, 0.2, 2.0, 3.0, 5.0, 5.0, 1.0, 9.0]


def test_a_token_scores_its_entropy_times_the_greatest_later_attention() -> None:
    """Two tokens make Palermo; two words have no content; the last token has no later one."""
    words = group_words(TEXT, SPANS)
    scored = score_tokens(TEXT, SPANS, words, ATTENTION, ENTROPY, TAGGER)
    assert [round(token.score, 3) for token in scored] == [
        0.0, 0.0, 0.5, 0.0, 1.2, 0.9, 0.0, 0.0, 0.2, 0.0,
    ]  # fmt: skip
    hit = find_token(TEXT, scored, 1.0)
    assert hit is not None
    assert (hit.previous, hit.words[0].word.text, len(hit.before)) == ("He was born in", "Pal", 4)
    later = find_token(TEXT, scored, 0.8, first=5)
    assert later is not None
    assert later.previous == "He was born in Pal"  # the cut is at the token
    assert find_token(TEXT, scored, 2.0) is None


def test_the_query_is_of_the_tokens_that_the_hit_attends_to_most() -> None:
    words = group_words(TEXT, SPANS)
    context = QueryContext(words, frozenset(), range(len(SPANS)))
    weights = [0.05, 0.1, 0.3, 0.02, 0.5, 0.6, 0.9, 0.1, 0.0, 0.0]
    assert top_tokens(context, weights, 6, 2) == "Palermo"  # two tokens of one word
    assert top_tokens(context, weights, 6, 3) == "born Palermo"
    assert top_tokens(context, weights, 4, 2) == "was born"  # before the hit only
    assert top_tokens(context, weights, 0, 2) == ""
