"""The profile `paper`: equations 3, 5 and 6, and the query of 3.2, token by token."""

from __future__ import annotations

from service.answer.events import PassagesFound, QueryIssued, Stop, Trigger
from service.engines.signals import Span
from service.strategies.rind import (
    QueryContext,
    find_token,
    group_words,
    score_tokens,
    top_tokens,
)
from tests.stubs.signal_engine import DraftScript, SignalEngine
from tests.support.scripted import ScriptStep
from tests.unit.strategies.dragin.drafts import TAGGER
from tests.unit.strategies.dragin.test_loop import HITS, of, run, settings, text_of

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


async def test_the_text_is_cut_at_the_token_and_goes_on_with_the_passages() -> None:
    """They stay until the next trigger, and the token that asked does not ask again."""
    first = DraftScript(
        " He was born in Palermo once. So it is.", loud={"Palermo": 2.0}, attention={"Palermo": 0.9}
    )
    second = DraftScript(
        " Catania. He sang. So the answer is Catania.",
        loud={"Catania.": 9.0}, attention={"Catania.": 0.05},
    )  # fmt: skip
    engine = SignalEngine([first, second], focus=["composer"])
    events = await run(
        engine,
        hits={"": HITS["Norma"]},
        settings=settings(profile="paper"),
        conditions={"query_words": 1},
    )
    (trigger,) = of(events, Trigger)
    assert (trigger.token, trigger.score, trigger.attention) == ("Palermo", 1.8, 0.9)
    assert [event.query for event in of(events, QueryIssued)] == ["composer"]
    shown = of(events, PassagesFound)[0].passages[0].text
    assert engine.prompts[1].endswith("Answer: He was born in")
    assert shown not in engine.prompts[0]
    assert shown in engine.prompts[1]
    assert not engine.scores
    assert events[-1] == Stop(stopped_by="answer", answered=True)
    assert text_of(events, "answer", "3") == "Catania"


async def test_a_hit_at_the_first_token_does_not_end_the_loop() -> None:
    begins = DraftScript(" Palermo is it. So.", loud={"Palermo": 2.0}, attention={"Palermo": 0.9})
    again = DraftScript(
        " Palermo is it. So the answer is Palermo.",
        loud={"Palermo": 2.0}, attention={"Palermo": 0.9},
    )  # fmt: skip
    engine = SignalEngine([begins, again], [ScriptStep("x", times=None)])
    events = await run(engine, hits={"": HITS["Norma"]}, settings=settings(profile="paper"))
    assert len(of(events, QueryIssued)) == 1
    assert events[-1] == Stop(stopped_by="answer", answered=True)
