"""The four handlers over a scripted engine: every row of METHODS.md §1.2's failure table."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from service.answer.events import (
    AnswerReady,
    Withdraw,
)
from service.core.settings import Settings
from service.engines.base import Capabilities, Delta, GenerationRequest, TokenUsage
from tests.benchmarks.perfect_model import templates_in
from tests.support.asking import (
    ScriptedRetriever,
    answer_stream,
    body_in,
    body_of,
    inquiry,
    passage,
)
from tests.support.opera import (
    BELLINI,
    HOPS,
    NOISE,
    NORMA,
    QUESTION,
    decomposed,
    flags,
    relevant,
    say,
)
from tests.support.scripted import SHORT_FORMS, ScriptedGenerator, ScriptStep


def route(label: str) -> ScriptStep:
    return say("Task: route", f"{label} question")


def answering(**answers: object) -> Settings:
    return Settings.model_validate({"answers": answers})


async def test_direct_answers_closed_book_without_steps_or_citations() -> None:
    script = [route("straightforward"), say("Task: closed", "a bank")]
    body = await body_of(script, {}, "Where do you keep money?")
    assert (body.route, body.loop, body.answer) == ("direct", "none", "a bank")
    assert body.answered
    assert body.citations == []
    assert (body.usage.steps, body.usage.retrievals, body.usage.llm_calls) == (0, 0, 2)


async def test_single_keeps_relevant_passages_in_retriever_order_and_cites_the_sentence() -> None:
    script = [
        route("single-step"),
        *relevant("Norma"),
        say(["Task: answer", "Doc1", "Norma"], "Vincenzo Bellini"),
    ]
    body = await body_of(script, {"": [NOISE, NORMA]}, "Who composed Norma?")
    assert body.answer == "Vincenzo Bellini"
    assert body.usage.model_dump(exclude_none=True) == {
        "llm_calls": 4,
        "prompt_tokens": body.usage.prompt_tokens,
        "completion_tokens": body.usage.completion_tokens,
        "retrievals": 1,
        "passages": 1,
        "steps": 1,
    }
    assert [p.kept for p in body.steps[1].passages] == [False, True]
    (citation,) = body.citations
    assert citation.text == "It was composed by Vincenzo Bellini."
    assert NORMA.text[citation.start : citation.end] == citation.text
    assert citation.step == body.steps[1].id == "2"


async def test_unreadable_route_becomes_single_and_says_so() -> None:
    script = [
        say("Task: route", "I cannot say"),
        *relevant("Norma"),
        say("Task: answer", "Bellini"),
    ]
    body = await body_of(script, {"": [NORMA, NOISE]}, "Who?")
    assert body.route == "single"
    assert flags(body) == {"route_parse_failed"}


async def test_where_nothing_is_relevant_the_service_abstains() -> None:
    body = await body_of(relevant(), {"": [NOISE]}, "Who?", route="single")
    assert (body.answered, body.steps[0].answer, flags(body)) == (False, None, {"no_evidence"})


async def test_without_evidence_the_three_best_may_be_read_unfiltered() -> None:
    script = [*relevant(), say(["Task: answer", "Palermo"], "Sicily")]
    options = {"route": "single", "settings": answering(no_evidence="top3_unfiltered")}
    body = await body_of(script, {"": [NOISE]}, "Where is Palermo?", **options)
    assert body.answer == "Sicily"
    assert [citation.passage_id for citation in body.citations] == ["noise"]


async def test_a_small_reader_is_not_asked_to_merge_where_a_part_has_no_answer() -> None:
    script = [
        decomposed("Who composed Norma?", "Where is Atlantis?"),
        say(["Task: answer", "Who composed"], "Bellini"),
        say(["Task: answer", "Where is"], "no answer found"),
        say("Task: relevance", "true", 2),
    ]
    hits = {"Norma": [NORMA], "Atlantis": [NOISE]}
    able = replace(SHORT_FORMS, passages=3)
    body = await body_of(script, hits, "both?", route="compound", capabilities=able)
    assert body.answer == "Bellini. No answer was found to: Where is Atlantis?"
    assert "unsupported" not in flags(body)
    assert [citation.passage_id for citation in body.citations] == ["norma"]


async def test_compound_whose_parts_all_abstain_abstains() -> None:
    script = [decomposed("a?", "b?"), *relevant()]
    body = await body_of(script, {"": [NOISE]}, "both?", route="compound")
    assert not body.answered
    assert [step.kind for step in body.steps] == ["decompose", "retrieve", "retrieve"]


async def test_decomposition_that_fails_twice_is_answered_as_one_question() -> None:
    script = [
        say("Task: decompose", "no JSON here", 2),
        *relevant("Norma"),
        say("Task: answer", "Bellini"),
    ]
    body = await body_of(script, {"": [NORMA, NOISE]}, "Who composed Norma", route="compound")
    assert (body.route, body.answer, body.usage.steps) == ("compound", "Bellini", 1)
    assert flags(body) == {"repaired"}


async def test_more_than_eight_parts_are_cut() -> None:
    script = [
        decomposed(*[f"q{n}?" for n in range(12)]),
        say("Task: relevance", "true", 8),
        say("Task: answer", "opera", 8),
        say("Task: merge", "opera"),
    ]
    body = await body_of(script, {"": [NORMA]}, "q", route="compound")
    assert sum(step.kind == "retrieve" for step in body.steps) == 8
    assert flags(body) == {"shortened"}


BENCHMARK = {"merge_style": "benchmark"}


def parts_script(second: str) -> list[ScriptStep]:
    """Two parts with full prompts, of which the second is answered by `second`."""
    return [
        say("Take a question apart", decomposed("a?", "b?").reply),  # type: ignore[arg-type]
        say("\nDoc: norma", "true", 2),
        say(["Doc1", "Question: a?"], "the opera Norma"),
        say(["Doc1", "Question: b?"], second),
    ]


@pytest.mark.parametrize(
    ("merged", "answer", "flags_"),
    [
        ("Norma && 1831", "Norma && 1831", set()),
        ("Norma", "the opera Norma && in 1831", {"repaired"}),
        ("Norma && ", "the opera Norma && in 1831", {"repaired"}),
        ("Norma && 1831 && Milan", "the opera Norma && in 1831", {"repaired"}),
    ],
    ids=["all parts", "one is lost", "one is empty", "one too many"],
)
async def test_benchmark_merge_asks_the_model_and_loses_no_part(
    merged: str, answer: str, flags_: set[str]
) -> None:
    script = [*parts_script("in 1831"), say(["Sub-answer 2: in 1831", '" && "'], merged)]
    hits = [passage("norma", "The opera Norma was first given in 1831.")]
    body = await body_of(
        script, {"": hits}, "q", route="compound", conditions=BENCHMARK, prompts="full"
    )
    assert body.answer == answer
    assert "repaired" in flags(body) if flags_ else "repaired" not in flags(body)


@pytest.mark.parametrize(
    ("merged", "answer", "repaired"),
    [
        ("It was the opera Norma, in 1831.", "It was the opera Norma, in 1831.", False),
        ("The opera Norma", "the opera Norma; in 1831", True),
    ],
)
async def test_a_part_that_a_merge_in_prose_loses_is_told(
    merged: str, answer: str, repaired: bool
) -> None:
    script = [*parts_script("in 1831"), say("Sub-answer 2: in 1831", merged)]
    hits = [passage("norma", "The opera Norma was first given in 1831.")]
    body = await body_of(script, {"": hits}, "q", route="compound", prompts="full")
    assert body.answer == answer
    assert ("repaired" in flags(body)) is repaired
    assert "unsupported" not in flags(body)
    assert [each.passage_id for each in body.citations] == ["norma"]


def bellini_script() -> list[ScriptStep]:
    return [
        route("complex"),
        say(["Task: ending", '""nothing""'], "no"),
        say(["Task: refine", '""nothing""'], "Who composed the opera Norma?"),
        *relevant("Norma", "Bellini"),
        say(["Task: answer", "Who composed"], "Vincenzo Bellini"),
        say(["Task: ending", "**answer-1**: Vincenzo Bellini"], "no"),
        say(["Task: refine", "**answer-1**"], "In which city was Vincenzo Bellini born?"),
        say(["Task: answer", "In which city was Vincenzo"], "Catania"),
        say(["Task: ending", "**answer-2**: Catania"], "yes"),
        say(["Task: final", "Sub-answer 2: Catania"], "Catania"),
    ]


def _ordered(script: list[ScriptStep]) -> list[ScriptStep]:
    """Longer histories first: an earlier pair is also part of a later prompt."""
    return sorted(script, key=lambda step: -_history(step))


def _history(step: ScriptStep) -> int:
    text = " ".join(step.match) if isinstance(step.match, list) else str(step.match)
    return 2 if "answer-2" in text else 1 if "answer-1" in text else 0


async def test_complex_without_evidence_refines_once_more_before_going_on() -> None:
    script = [
        say(["Task: ending", '""nothing""'], "no"),
        say(["Task: refine", "no answer found"], "Who composed the opera Norma?"),
        say("Task: refine", "Who made it?"),
        *relevant("Norma"),
        say("Task: answer", "Bellini"),
        say("Task: ending", "yes"),
        say(["Task: final", "Sub-answer 1: no answer found"], "Bellini"),
    ]
    hits = {"Norma": [NORMA], "": [NOISE]}
    body = await body_of(script, hits, QUESTION, route="complex")
    assert body.answer == "Bellini"
    assert [step.flags for step in body.steps[1:3]] == [["no_evidence"], []]


@pytest.mark.parametrize("ahead", [True, False])
async def test_one_call_asks_for_the_next_question_or_ends(tmp_path: Path, ahead: bool) -> None:
    """Where the templates have such a prompt; the paper's bundle keeps its two calls."""
    script = bellini_script()
    if ahead:
        asked = [
            ('""nothing""', {"enough": False, "question": "Who composed the opera Norma?"}),
            ("**answer-1**", {"enough": False, "question": "In which city was he born?"}),
            ("**answer-2**", {"enough": True, "question": ""}),
        ]
        script = [step for step in script if "ending" not in f"{step.match}"]
        script = [step for step in script if "refine" not in f"{step.match}"]
        script += [say(["Task: next", match], json.dumps(reply)) for match, reply in asked]
    body = await body_of(
        _ordered(script), HOPS, QUESTION, prompts=str(templates_in(tmp_path)),
        conditions={"looks_ahead": ahead},
    )  # fmt: skip
    assert body.answer == "Catania"
    assert [step.kind for step in body.steps] == ["route", "ending", *["retrieve"] * 2, "answer"]
    where = "In which city was Vincenzo Bellini born?"
    assert [step.question for step in body.steps[2:4]] == ["Who composed the opera Norma?", where]


@pytest.mark.parametrize(
    ("reply", "flagged"),
    [
        ("I cannot say.", ["unread_judgement"]),
        ("", ["unread_judgement"]),
        ('{"enough": false, "question": ""}', []),
        ('{"enough": false, "question": "Who composed Norma?"}', []),  # once more
    ],
)
async def test_without_a_new_question_the_next_one_is_asked_for_by_its_own_call(
    tmp_path: Path, reply: str, flagged: list[str]
) -> None:
    script = [
        say(["Task: next", '""nothing""'], '{"enough": false, "question": "Who composed Norma?"}'),
        *relevant("Norma", "Bellini"),
        say("Task: answer", "Vincenzo Bellini"),
        say(["Task: next", "**answer-1**"], reply),
        say(["Task: refine", "**answer-1**"], "In which city was Vincenzo Bellini born?"),
        say("Task: answer", "Catania"),
        say(["Task: next", "**answer-2**"], '{"enough": true, "question": ""}'),
        say("Task: final", "Catania"),
    ]
    hits = {"Norma?": [NORMA, NOISE], "Vincenzo Bellini": [BELLINI, NORMA]}
    body = await body_of(
        _ordered(script), hits, QUESTION, route="complex", prompts=str(templates_in(tmp_path))
    )
    assert (body.answer, body.steps[1].flags) == ("Catania", flagged)
    assert body.steps[2].question == "In which city was Vincenzo Bellini born?"


async def test_the_papers_ablations_leave_their_calls_out() -> None:
    script = [say("Task: answer", "x", 2), say("Task: final", "x")]
    off = {"skip": ["relevance", "ending", "refine"]}
    body = await body_of(script, {"": [NORMA]}, "q?", route="complex", conditions=off, max_steps=2)
    assert [step.question for step in body.steps] == ["q?", "q?", "q?"]
    assert body.steps[0].passages[0].kept


async def test_a_reader_that_says_nothing_twice_leaves_the_question_unanswered() -> None:
    script = [*relevant("Norma"), say("Task: answer", "", 2)]
    body = await body_of(script, {"": [NORMA, NOISE]}, "q?", route="single")
    assert not body.answered
    assert body.answer == Settings().answers.no_answer_text


async def test_missing_retrievers_are_named_in_the_body() -> None:
    engine = ScriptedGenerator([*relevant("Norma"), say("Task: answer", "x")])
    retriever = ScriptedRetriever({"": [NORMA, NOISE]}, missing=("dense",))
    asked = inquiry(engine, retriever, "q?", route="single")
    events = [event async for event in answer_stream(asked)]
    body = body_in(events)
    assert body.degraded == ["dense"]


async def test_a_final_answer_cut_by_the_deadline_keeps_what_was_written() -> None:
    script = [
        *relevant("Norma"),
        ScriptStep(match="Task: answer", reply=["Vincenzo", " Bellini"], delay=0.8),
    ]
    body = await body_of(
        script, {"": [NORMA, NOISE]}, "q?", route="single", limits={"timeout_s": 1.4}
    )
    assert (body.answer, body.stopped_by) == ("Vincenzo", "deadline")
    assert flags(body) == {"shortened"}


async def test_text_that_was_reasoning_is_withdrawn() -> None:
    asked = inquiry(_Voiding([]), ScriptedRetriever({"": [NORMA]}), "q?", route="direct")
    events = [event async for event in answer_stream(asked)]
    body = body_in(events)
    assert body.answer == "Bellini"
    assert [e.reason for e in events if isinstance(e, Withdraw)] == ["repair"]


class _Voiding(ScriptedGenerator):
    """Tells that it was reasoning once it begins to answer."""

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        yield Delta("It is Verdi.")
        yield Delta("Bellini", voids=True)
        yield Delta("", finish="stop", usage=TokenUsage(1, 1))


async def test_a_model_that_reads_few_passages_gets_few_unless_asked_otherwise() -> None:
    async def shown(**request: int) -> int:
        script = [say("Task: relevance", "true", None), say("Task: answer", "x")]
        engine = ScriptedGenerator(script, capabilities=Capabilities(passages=1))
        asked = inquiry(
            engine,
            ScriptedRetriever({"": [NORMA, BELLINI, NOISE]}),
            "q?",
            route="single",
            **request,
        )
        events = [event async for event in answer_stream(asked)]
        return next(e.body.usage.passages for e in events if isinstance(e, AnswerReady))

    assert await shown() == 1
    assert await shown(top_k=2) == 2
