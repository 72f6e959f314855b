"""DRAGIN's calls and events, step by step (METHODS.md §3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    PassagesFound,
    QueryIssued,
    StepEnd,
    StepStart,
    Stop,
    ThoughtWritten,
    Token,
    TokenRole,
    Trigger,
    Withdraw,
)
from service.answer.fold import Fold
from service.core.domain import Passage
from service.core.errors import EngineInterrupted
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.strategies.dragin import PROFILES, SERVICE, Dragin
from tests.stubs.signal_engine import FIRST, LAST, REWRITTEN, DraftScript, SignalEngine
from tests.support.asking import ScriptedRetriever, inquiry, loop_events, of, passage
from tests.support.scripted import ScriptStep

QUESTION = "In which city was the composer of the opera Norma born?"
HITS: dict[str, list[Passage]] = {
    "Norma": [passage(f"p{n}", f"Passage {n}.") for n in range(1, 5)],
}
QUERY = "city composer opera Norma born? Norma composed Vincenzo Bellini. born"


def settings(**dragin: Any) -> Settings:
    values = {"profile": "official", **dragin}
    return Settings.model_validate({"dragin": values})


async def run(
    engine: SignalEngine,
    hits: Mapping[str, Sequence[Passage] | Exception] = HITS,
    as_role: TokenRole = "answer",
    **options: Any,
) -> list[BaseEvent]:
    options.setdefault("settings", settings())
    asked = inquiry(engine, ScriptedRetriever(hits), QUESTION, loop="dragin", **options)
    events = [event async for event in loop_events(Dragin, asked, QUESTION, as_role)]
    engine.assert_finished()
    return events


def kinds(events: list[BaseEvent]) -> list[str]:
    """Events by name, runs of tokens as one."""
    names: list[str] = []
    for event in events:
        name = event.event if not isinstance(event, Token) else f"token {event.role}"  # type: ignore[attr-defined]
        if not names or names[-1] != name:
            names.append(name)
    return names


def text_of(events: list[BaseEvent], role: str, step: str) -> str:
    return "".join(e.text for e in of(events, Token) if (e.role, e.step) == (role, step))


async def test_the_worked_example() -> None:
    engine = SignalEngine([FIRST, LAST], [ScriptStep(REWRITTEN)])
    events = await run(engine)

    assert kinds(events) == [
        "step", "token draft", "withdraw", "step_end",
        "step", "thought", "trigger", "query", "passages", "token draft", "step_end",
        "step", "token draft", "thought", "token answer", "step_end", "stop",
    ]  # fmt: skip
    assert [(e.step, e.kind) for e in of(events, StepStart)] == [
        ("1", "answer"), ("2", "retrieve"), ("3", "answer"),
    ]  # fmt: skip
    (trigger,) = of(events, Trigger)
    assert (trigger.token, trigger.entropy, trigger.threshold) == ("Palermo.", 1.10, 1.0)
    assert trigger.attention == pytest.approx(0.35)
    assert trigger.query == QUERY
    drafted = "Norma was composed by Vincenzo Bellini. He was born in Palermo."
    assert " ".join(word.text for word in trigger.words) == drafted
    assert [word.score > trigger.threshold for word in trigger.words] == [False] * 10 + [True]
    assert trigger.words[-1].model_dump() == {
        "text": "Palermo.",
        **{name: getattr(trigger, name) for name in ("entropy", "attention", "score")},
    }
    assert [e.query for e in of(events, QueryIssued)] == [QUERY]
    (found,) = of(events, PassagesFound)
    assert [(p.passage_id, p.kept) for p in found.passages] == [
        ("p1", True),
        ("p2", True),
        ("p3", True),
    ]
    kept, standing = of(events, ThoughtWritten)
    assert (kept.text, kept.words) == ("Norma was composed by Vincenzo Bellini.", None)
    assert "words" not in kept.model_dump()
    assert standing.text == "So the answer is Catania."
    assert " ".join(word.text for word in standing.words) == standing.text
    assert standing.threshold == trigger.threshold
    assert not any(word.score > standing.threshold for word in standing.words)
    assert text_of(events, "draft", "2") == "Bellini was born in Catania."
    assert text_of(events, "answer", "3") == "Catania"
    assert [e.answer for e in of(events, StepEnd)] == [
        None,
        "Bellini was born in Catania.",
        "Catania",
    ]
    assert events[-1] == Stop(stopped_by="answer", answered=True)


BEFORE = "Norma was composed by Vincenzo Bellini."
AT_ONCE = DraftScript(
    " He was born in Palermo. So the answer is Palermo.",
    loud={"Palermo.": 1.10},
    attention={"Palermo.": 0.9},
)


@pytest.mark.parametrize(
    ("formulation", "first", "second"),
    [
        ("last_sentence", BEFORE, "He sang."),
        ("full_context", f"{QUESTION} {BEFORE}", f"{QUESTION} {BEFORE} He sang."),
        ("sentence_without_hits", "He was born in", "He was born in"),
        ("last_tokens", "by Vincenzo Bellini.", "Bellini. He sang."),
    ],
)
async def test_other_formulations_of_the_query(formulation: str, first: str, second: str) -> None:
    """Those of the paper's Tables 4 and 6, at the same triggers: what is written counts, the rest
    of the hit's sentence only without its hits. No pass over a text is made for them."""
    engine = SignalEngine([FIRST, AT_ONCE, LAST], [ScriptStep("He sang. He."), ScriptStep("He.")])
    events = await run(
        engine,
        hits={"": HITS["Norma"]},
        conditions={"query_words": 3, "query_formulation": formulation},
    )
    assert [event.query for event in of(events, QueryIssued)] == [first, second]
    assert [event.query for event in of(events, Trigger)] == [first, second]
    assert len(engine.scores) == 3
    assert {request.text for request in engine.scores} == {None}


async def test_a_full_context_is_cut_to_the_last_tokens() -> None:
    words = [f"w{n}" for n in range(80)]
    draft = DraftScript(
        f" {' '.join(words)}. He was born in Palermo. So.",
        loud={"Palermo.": 1.10},
        attention={"Palermo.": 0.9},
    )
    engine = SignalEngine([draft, LAST], [ScriptStep("He.")])
    events = await run(
        engine, hits={"": HITS["Norma"]}, conditions={"query_formulation": "full_context"}
    )
    (query,) = [event.query for event in of(events, QueryIssued)]
    assert query == f"{' '.join(words[-64:])}."


@pytest.mark.parametrize(("profile", "early"), [("service", True), ("in_context", False)])
async def test_a_hit_stops_the_draft_unless_later_sentences_count(
    profile: Any, early: bool
) -> None:
    draft = DraftScript(
        " He was born in Palermo in Sicily once. So the answer is Palermo. It is so.",
        loud={"Palermo": 2.0}, attention={"Palermo": 0.5},
    )  # fmt: skip
    engine = SignalEngine([draft, LAST], [ScriptStep(REWRITTEN)], focus=["opera", "composer"])
    own, conditions = settings(profile=profile), {"query_words": 2}
    events = await run(engine, hits={"": HITS["Norma"]}, settings=own, conditions=conditions)
    assert (engine.spared > 0) == early
    assert not engine.scores
    (trigger,) = of(events, Trigger)
    assert trigger.token == "Palermo"
    assert trigger.query == "composer opera"
    assert of(events, StepEnd)[0].usage.llm_calls == 1
    assert of(events, StepEnd)[0].usage.prompt_tokens > 0


async def test_what_an_early_end_spares_is_counted() -> None:
    draft = DraftScript(
        " He was born in Palermo in Sicily once. So the answer is Palermo. It is so.",
        loud={"Palermo": 2.0}, attention={"Palermo": 0.5},
    )  # fmt: skip
    for profile, drafted in (("service", 100 - 10), ("in_context", 0), ("official", 0)):
        engine = SignalEngine([draft, LAST], [ScriptStep(REWRITTEN)])
        metrics = Metrics()
        own = settings(profile=profile, max_tokens=100)
        asked = inquiry(engine, ScriptedRetriever({"": HITS["Norma"]}), QUESTION, settings=own)
        asked.metrics = metrics
        async for _ in loop_events(Dragin, asked, QUESTION):
            pass
        rewritten = 100 - 7  # "So" is whole with the word after it
        counted = metrics.registry.get_sample_value("revelator_saved_tokens_total")
        assert counted == drafted + rewritten
        assert metrics.registry.get_sample_value("revelator_wasted_tokens_total") == 0


async def test_a_draft_that_may_not_retrieve_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a hit would have stopped in mid-sentence stands whole before its conclusion."""
    first = DraftScript(" He was born in Palermo. So the answer is x.", loud={"Palermo.": 9.0})
    again = DraftScript(" He died in Paris. He was rich and old.", loud={"Paris.": 9.0})
    engine = SignalEngine(
        [first, again], [ScriptStep("He was born. Then"), ScriptStep("Paris", match="answer is")]
    )
    own = settings(profile="service")
    events = await run(engine, hits={"": HITS["Norma"]}, settings=own, max_steps=1)
    assert len(of(events, Trigger)) == 1
    assert events[-1] == Stop(stopped_by="max_steps", answered=True)
    assert text_of(events, "draft", "3") == again.text.strip()
    standing = of(events, ThoughtWritten)[-1]
    assert again.text.strip().startswith(" ".join(word.text for word in standing.words))
    assert max(word.score for word in standing.words) > standing.threshold
    assert engine.requests[-1].prompt.endswith("He was rich and old. So the answer is")

    whole = DraftScript(" He died in Paris. So the answer is Paris.", loud={"Paris.": 9.0})
    engine = SignalEngine([whole])
    monkeypatch.setitem(PROFILES, "service", replace(SERVICE, max_retrievals=0))
    events = await run(engine, settings=own)
    assert events[-1] == Stop(stopped_by="max_steps", answered=True)
    assert text_of(events, "answer", "1") == "Paris"


DECLINED = DraftScript(" This is not known. So the answer is no answer found.")


async def test_a_draft_that_declines_unsearched_has_the_question_searched() -> None:
    engine = SignalEngine([DECLINED, LAST], [ScriptStep(REWRITTEN)])
    events = await run(engine, settings=settings(profile="service"))
    assert [e.reason for e in of(events, Withdraw)] == ["trigger"]
    assert [e.query for e in of(events, QueryIssued)] == [QUESTION]
    assert engine.prompts[1].endswith("\nAnswer: Bellini was born in Catania.")
    assert text_of(events, "answer", "3") == "Catania"
    assert [e.usage.hallucinated for e in of(events, StepEnd)] == [0, 1, 0]


@pytest.mark.parametrize("profile", ["service", "in_context", "official"])
async def test_a_sentence_that_is_written_again_ends_the_loop(profile: Any) -> None:
    """The published code goes on until L."""
    same = DraftScript(" He was born in Catania.", loud={"born": 9.0}, attention={"born": 1})
    again = [ScriptStep("He was born in Catania.", times=2), ScriptStep("Catania", times=None)]
    official = profile == "official"
    drafts = [same, same, *[DraftScript(" So the answer is Catania.")] * official]
    engine = SignalEngine(drafts, again)
    events = await run(engine, settings=settings(profile=profile))
    repeated = [end for end in of(events, StepEnd) if "no_progress" in end.flags]
    assert len(repeated) == (0 if official else 1)
    assert len(of(events, QueryIssued)) == 2
    assert text_of(events, "answer", of(events, StepEnd)[-1].step or "") == "Catania"


async def test_an_empty_draft_ends_the_loop() -> None:
    engine = SignalEngine([DraftScript("")], [ScriptStep("Catania")])
    events = await run(engine)
    assert of(events, StepEnd)[-1].flags == ["no_progress", "closed_book"]
    assert events[-1] == Stop(stopped_by="answer", answered=True)
    silent = SignalEngine([DraftScript("  ")], [ScriptStep("")])
    assert (await run(silent))[-1] == Stop(stopped_by="answer", answered=False)


async def test_where_nothing_is_found_the_drafted_sentence_stays() -> None:
    closed = Settings.model_validate(
        {"dragin": {"profile": "official"}, "answers": {"no_evidence": "closed_book"}}
    )
    engine = SignalEngine([FIRST, LAST])
    events = await run(engine, hits={}, settings=closed)
    assert engine.prompts[1].endswith("Bellini. He was born in Palermo.")
    assert events[-1] == Stop(stopped_by="answer", answered=True)


async def test_a_query_of_only_stop_words_is_not_sent() -> None:
    draft = DraftScript(" He was there. So the answer is x.", loud={"there.": 9.0})
    engine = SignalEngine([draft, LAST])
    asked = inquiry(engine, ScriptedRetriever(HITS), "Who was he?", settings=settings())
    events = [event async for event in loop_events(Dragin, asked, "Who was he?")]
    assert not of(events, QueryIssued)
    assert of(events, Trigger)[0].query == ""
    assert of(events, StepEnd)[1].flags == ["no_evidence"]


async def test_passages_longer_than_the_context_are_shortened() -> None:
    long = [passage(f"p{n}", f"First {n}. " + "Many words follow here. " * 40) for n in range(3)]
    engine = SignalEngine([FIRST, LAST], [ScriptStep(REWRITTEN)], context_tokens=400)
    events = await run(engine, hits={"": long}, settings=settings(max_tokens=40))
    assert "shortened" in of(events, StepEnd)[1].flags
    (found,) = of(events, PassagesFound)
    kept = [p.kept for p in found.passages]
    assert kept == [True, False, False]
    assert found.passages[1].reason == "not shown"
    assert "[1] First 0. Many words" in (engine.requests[0].prompt or "")
    assert "[2]" not in (engine.requests[0].prompt or "")

    engine = SignalEngine([FIRST, LAST], [ScriptStep(REWRITTEN)], context_tokens=210)
    events = await run(engine, hits={"": long}, settings=settings(max_tokens=40))
    prompt = engine.requests[0].prompt or ""
    shown = prompt[prompt.index("[1]") : prompt.index("\nAnswer in")]
    assert shown.startswith("[1] First 0. Many")
    assert shown.endswith("here.")
    assert len(shown) < len(long[0].text)


async def test_a_lost_worker_s_hit_is_lost_with_its_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = DraftScript(
        " He was born in Palermo in Sicily once. So the answer is Palermo. It is so.",
        loud={"Palermo": 2.0}, attention={"Palermo": 0.5},
    )  # fmt: skip
    monkeypatch.setitem(PROFILES, "service", replace(SERVICE, max_retrievals=0))
    lost = replace(draft, failure=(12, EngineInterrupted("gone")))
    events = await run(SignalEngine([lost, LAST]), settings=settings(profile="service"))
    assert events[-1] == Stop(stopped_by="answer", answered=True)


async def test_what_was_generated_is_counted() -> None:
    engine = SignalEngine([FIRST, LAST], [ScriptStep(REWRITTEN)])
    fold = Fold()
    ends = []
    for event in await run(engine):
        fold.add(event)
        ends += [event.usage] if isinstance(event, StepEnd) else []
    assert [(u.generations, u.sentences, u.hallucinated) for u in ends] == [
        (1, 3, 0), (1, 2, 1), (1, 1, 0),
    ]  # fmt: skip
    usage = fold.usage()
    assert (usage.generations, usage.sentences, usage.hallucinated) == (3, 6, 1)


async def test_a_demonstration_s_answer_is_asked_for_once_more() -> None:
    text = " Norma was directed by Paul Renner. So the answer is Paul Renner."
    hot = ScriptStep(" Bellini.", match=lambda request: request.temperature > 0)
    engine = SignalEngine([DraftScript(text)], [hot])
    events = await run(engine, settings=settings(profile="service"))
    (end,) = of(events, StepEnd)
    assert (end.answer, end.flags) == ("Bellini", ["closed_book"])


# ---- the profile `paper`


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
