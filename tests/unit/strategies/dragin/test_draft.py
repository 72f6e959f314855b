from __future__ import annotations

from dataclasses import replace

import pytest

from service.core.errors import EngineFailure
from service.engines.signals import DraftToken, Maximum, ScoredToken, Scoring
from service.strategies.dragin import IN_CONTEXT, OFFICIAL, SERVICE, DraftWatch, DraginOptions
from service.strategies.rind import Hit
from tests.unit.strategies.dragin.drafts import (
    SPLITTER,
    TAGGER,
    WORKED,
    WORKED_ATTENTION,
    WORKED_ENTROPY,
    pieces_of,
    tokens_of,
)

EARLY = replace(IN_CONTEXT, whole_draft=False)  # as under `service`


def watch(options: DraginOptions = EARLY) -> DraftWatch:
    return DraftWatch(options, TAGGER, SPLITTER)


def worked_tokens(late: float = 0.0) -> list[DraftToken]:
    """A full stop is a token of its own, and each maximum comes with the next token's query.

    `late`: "Norma" gets more from the last query but one, long after its sentence.
    """
    pieces: list[str] = []
    entropy: list[float] = []
    attention: list[float] = []
    for word, a, h in zip(pieces_of(WORKED), WORKED_ATTENTION, WORKED_ENTROPY, strict=True):
        parts = [word[:-1], "."] if word.endswith(".") else [word]
        pieces += parts
        entropy += [h] * len(parts)
        attention += [a, 0.0][: len(parts)]
    updates: list[list[Maximum]] = [[], *([maximum] for maximum in enumerate(attention[:-1]))]
    if late:
        updates[-2].append((0, late))
    updates[-1] = []
    return tokens_of(pieces, entropy, updates)


def run(tokens: list[DraftToken], options: DraginOptions = EARLY) -> tuple[int | None, Hit | None]:
    """How many tokens were read when a hit was found, and the hit."""
    own = watch(options)
    for number, token in enumerate(tokens, 1):
        if hit := own.feed(token):
            return number, hit
    return None, own.judge_rest()


def test_a_later_sentence_counts_where_the_whole_draft_is_known() -> None:
    read, hit = run(worked_tokens(late=0.99), replace(IN_CONTEXT, threshold=1.5))
    assert (read, hit and hit.sentence) == (None, "He was born in Palermo.")
    raised = run(worked_tokens(late=0.99), replace(IN_CONTEXT, threshold=0.5))[1]
    assert raised is not None
    assert raised.words[0].attention == 0.99  # 1.00 before: the newest maximum counts


def test_later_queries_do_not_count() -> None:
    """What sentence 1 gets from sentence 2 comes too late for it."""
    plain, late = run(worked_tokens()), run(worked_tokens(late=9.0))
    assert plain == late
    rule = replace(EARLY, threshold=0.01)
    _, hit = run(worked_tokens(), rule)
    assert hit is not None
    assert hit.words[0].attention == 1.0
    assert hit.words[-1].attention == 0.25  # from its own full stop


def test_official_waits_for_the_pass_over_the_draft() -> None:
    own = watch(OFFICIAL)
    tokens = tokens_of(pieces_of(WORKED), WORKED_ENTROPY, [()] * len(WORKED_ENTROPY))
    assert all(own.feed(token) is None for token in tokens)
    scored = tuple(
        ScoredToken(token.id, token.span, a)
        for token, a in zip(tokens, WORKED_ATTENTION, strict=True)
    )
    hit = own.judge_rest(Scoring(scored))
    assert hit is not None
    assert hit.strongest.word.text == "Palermo."
    assert hit.strongest.score == pytest.approx(1.60, abs=5e-3)
    with pytest.raises(EngineFailure, match="15 tokens of a draft of 16"):
        own.judge_rest(Scoring(scored[:-1]))


def test_an_empty_draft_has_no_hit() -> None:
    assert watch().judge_rest() is None
    assert watch(SERVICE).judge_rest() is None
    own = watch()
    own.feed(DraftToken(2, "", (0, 0), 3.0, -3.0))
    assert own.judge_rest() is None


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (DraftToken(1, "a", (0, 1), float("nan"), -1.0), "not a number"),
        (DraftToken(1, "a", (0, 1), 1.0, float("-inf")), "not a number"),
        (DraftToken(1, "a", (0, 1), 1.0, -1.0, ((0, float("nan")),)), "not a number"),
        (DraftToken(1, "a", (0, 1), 1.0, -1.0, ((0, 0.5),)), "to one that is not before it"),
        (DraftToken(1, "a", (3, 1), 1.0, -1.0), "placed token 0"),
    ],
)
def test_signals_that_cannot_be_are_an_engine_s_failure(token: DraftToken, message: str) -> None:
    with pytest.raises(EngineFailure, match=message):
        watch().feed(token)


def test_attention_that_is_no_number_is_an_engine_s_failure() -> None:
    own = watch(OFFICIAL)
    own.feed(DraftToken(1, "a", (0, 1), 1.0, -1.0))
    with pytest.raises(EngineFailure, match="float32"):
        own.judge_rest(Scoring((ScoredToken(1, (0, 1), float("nan")),)))
