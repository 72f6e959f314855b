"""What every method owes: each loop, and each route and profile that makes one another, with a
model that answers whatever it is asked.

`ask` checks what holds of any question. What a method decides, and in which steps, is tested beside
it in `tests/unit/strategies`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from service.answer.calls import texts_of
from service.answer.events import (
    BaseEvent,
    Done,
    Failed,
    PassagesFound,
    StepEnd,
    StepStart,
    Stop,
    Token,
)
from service.core.domain import Answer, LoopName, Passage
from service.core.errors import EngineFailure, EngineInterrupted, RetrievalFailure
from service.core.settings import Settings
from service.encoders.efficientrag import Labelling
from service.engines.base import GenerationRequest
from service.strategies.registry import LOOPS
from tests.stubs.scripted_extractor import ScriptedExtractor
from tests.stubs.word_labelling import WordFilter, WordLabeler
from tests.support.answerer import DECLINES, EXAMPLES, GUESS, MEMORY, Answerer, labelling
from tests.support.asking import ScriptedRetriever, answer_stream, body_in, inquiry, of, standing
from tests.support.claims import Told, problems
from tests.support.opera import BELLINI, NORMA, QUESTION

Hits = Mapping[str, Sequence[Passage] | Exception]
FOUND: Hits = {"": [BELLINI, NORMA]}


class Way(NamedTuple):
    """How a question is answered: its route, loop, and what else is set."""

    route: str
    loop: str
    settings: dict[str, Any] = {}


WAYS: dict[str, Way] = {
    **{loop: Way("single", loop) for loop in LOOPS},
    "complex": Way("complex", "anrag"),
    "corag": Way("single", "searcher", {"searcher": {"protocol": "corag"}}),
    "dragin official": Way("single", "dragin", {"dragin": {"profile": "official"}}),
    "autorag few_shot": Way("single", "autorag", {"autorag": {"mode": "few_shot"}}),
}
SEARCHING = [name for name in WAYS if name != "no_retrieval"]
GATES = ["entropy_gate", "margin_gate", "trend_gate"]
ONE_CALL = {"no_retrieval", "one_retrieval", "efficientrag"}
WITHOUT_EXAMPLES = {"autorag", "autorag few_shot", "searcher", "corag"}  # of answers
FROM_SUB_ANSWERS = {"self_ask", "complex"}


class Asked(NamedTuple):
    events: list[BaseEvent]
    engine: Answerer
    retriever: ScriptedRetriever
    verifier: ScriptedExtractor | None

    @property
    def calls(self) -> int:
        return self.engine.calls + (len(self.verifier.batches) if self.verifier else 0)

    def of(self, kind: type[Any]) -> list[Any]:
        return of(self.events, kind)

    @property
    def body(self) -> Answer:
        return body_in(self.events)

    @property
    def flags(self) -> set[str]:
        return {flag for end in self.of(StepEnd) for flag in end.flags}


async def ask(
    way: Way, engine: Answerer | None = None, hits: Hits = FOUND, **options: Any
) -> Asked:
    """Ask the question, and check what holds of any question."""
    engine, retriever = engine or Answerer(), ScriptedRetriever(hits)
    defaults = {"autorag": {"mode": "tuned"}, "searcher": {"protocol": "search_r1"}}
    settings = Settings.model_validate(defaults | way.settings | options.pop("settings", {}))
    question: dict[str, Any] = {"prompts": "full", "last_resort": False, **options}
    asked = inquiry(
        engine, retriever, QUESTION, settings=settings, route=way.route, loop=way.loop,
        labelling=labelling(), **question,
    )  # fmt: skip
    events = [event async for event in answer_stream(asked)]
    told = Asked(events, engine, retriever, options.get("verifier"))
    assert all(before.ms <= after.ms for before, after in pairwise(events))
    assert isinstance(events[-1], Done)
    assert asked.budget.under_way == 0
    assert asked.budget.llm_calls == told.calls
    assert asked.budget.retrievals == len(retriever.requests)
    if not told.of(Failed):
        _check_body(told)
    return told


def _check_body(told: Asked) -> None:
    if told.verifier is None:  # which may contradict the words of the passages
        wrong = problems(Told(told.events, told.body), None, Settings().answers.no_answer_text)
        assert wrong == []
    assert told.body.answer == standing(told.events)
    opened = [event.step for event in told.of(StepStart)]
    assert len(opened) == len(set(opened))
    assert sorted(opened) == sorted(event.step for event in told.of(StepEnd))
    usage = told.body.usage
    assert (usage.llm_calls, usage.retrievals) == (told.calls, len(told.retriever.requests))


def every(names: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", [WAYS[name] for name in names], ids=names)


@every([*WAYS])
async def test_a_question_is_answered_from_what_is_found(way: Way) -> None:
    told = await ask(way)
    body = told.body
    assert (body.answered, body.stopped_by, body.loop) == (True, "answer", way.loop)
    if way.loop == "no_retrieval":
        assert (body.answer, body.supported, told.flags) == (MEMORY, None, {"closed_book"})
        assert (body.citations, body.usage.retrievals) == ([], 0)
    else:
        assert (body.answer, body.supported) == ("Catania", True)
        assert told.flags <= {"no_new_evidence"}
        assert "bellini" in [citation.passage_id for citation in body.citations]


@every(SEARCHING)
@pytest.mark.parametrize("policy", ["abstain", "top3_unfiltered"])
async def test_where_nothing_is_found_there_is_no_answer(way: Way, policy: str) -> None:
    told = await ask(way, hits={}, settings={"answers": {"no_evidence": policy}})
    assert (told.body.answered, told.body.supported) == (False, False)
    assert "no_evidence" in told.flags
    assert all("no_evidence" in step.flags for step in told.body.steps if step.query)
    if way.loop not in GATES:  # which write first, and withdraw it
        assert [event.text for event in told.of(Token) if event.role == "answer"] == [
            told.body.answer
        ]


@every(SEARCHING)
async def test_the_settings_may_invite_memory(way: Way) -> None:
    told = await ask(way, hits={}, settings={"answers": {"no_evidence": "closed_book"}})
    body = told.body
    assert (body.answered, body.supported, body.citations) == (True, False, [])
    assert body.answer in ("Catania", GUESS, MEMORY)
    assert {"no_evidence", "closed_book"} <= told.flags


@every(SEARCHING)
async def test_a_model_that_declines_gives_no_answer(way: Way) -> None:
    told = await ask(way, Answerer(DECLINES))
    assert (told.body.answered, told.body.steps[-1].answer) == (False, None)
    assert "declined" in told.body.steps[-1].flags
    assert not told.flags & {"unsupported", "repaired", "prompt_example"}
    # Declining is a reply, which is not asked for again, though `complex` searches once more.
    assert way.route == "complex" or told.calls == (await ask(way)).calls


@every([name for name in SEARCHING if name not in {*WITHOUT_EXAMPLES, "trend_gate"}])
async def test_an_example_of_the_prompt_is_no_answer(way: Way) -> None:
    """It is asked for once more. The official profile of DRAGIN tells it, as published."""
    told = await ask(way, Answerer(borrows=True))
    official = "dragin" in way.settings
    assert "prompt_example" in told.body.steps[-1].flags
    assert told.body.answered == official
    assert official or told.body.steps[-1].answer is None
    assert official or any(request.temperature > 0 for request in told.engine.requests)
    assert told.body.answer in EXAMPLES.values() or not official


@every([*WAYS])
async def test_with_few_calls_the_last_one_goes_to_the_answer(way: Way) -> None:
    calls = (await ask(way)).engine.calls
    for most in range(1, calls):
        told = await ask(way, limits={"max_llm_calls": most})
        body = told.body
        assert body.usage.llm_calls <= most
        assert body.stopped_by in ("budget", "answer")
        if any(step.passages for step in body.steps):
            assert (body.answered, body.supported) == (True, True), most
        # The conclusion of a draft may use the reserve, though no passage was found.
        assert body.answered or (body.stopped_by == "budget" and way.loop != "dragin")


@every(SEARCHING)
@pytest.mark.parametrize("limit", [{"limits": {"max_retrievals": 1}}, {"max_steps": 1}])
async def test_after_the_last_retrieval_what_was_found_is_read(
    way: Way, limit: dict[str, Any]
) -> None:
    more = (await ask(way)).body.usage.retrievals > 1
    body = (await ask(way, **limit)).body
    searched_at_the_end = way is WAYS["corag"] and "max_steps" in limit
    assert body.usage.retrievals == 1 + searched_at_the_end
    assert (body.answered, body.supported) == (True, True)
    assert body.stopped_by in ("answer", "max_steps" if "max_steps" in limit else "budget")
    assert more or body.stopped_by == "answer" or way.loop in ("dragin", "flare", "searcher")


@every([name for name in WAYS if name not in ONE_CALL])
async def test_at_the_deadline_what_was_found_is_read(way: Way) -> None:
    """The last call but one is stuck, so that the reserve is left for the last one."""
    calls = (await ask(way)).engine.calls
    told = await ask(way, Answerer(stuck=[calls - 2]), limits={"timeout_s": 0.8})
    if not told.of(PassagesFound) or way.loop.endswith("gate"):
        assert [event.problem.status for event in told.of(Failed)] == [504]
    else:
        assert (told.body.answered, told.body.stopped_by) == (True, "deadline")
        assert told.body.supported or not told.body.usage.retrievals
        assert "fallback_direct" not in told.flags
    told = await ask(way, Answerer(stuck=range(calls - 1, 2 * calls)), limits={"timeout_s": 0.8})
    failed = [event.problem.status for event in told.of(Failed)]
    assert failed in ([], [504])
    assert [event.stopped_by for event in told.of(Stop)] == ["deadline"] * (not failed)


class Erratic(Answerer):
    """Gives what any prompt may be answered with, and never asks the same question twice."""

    def reply(self, request: GenerationRequest) -> str:
        size, prompt = len(texts_of(request)[-1]), " ".join(texts_of(request))
        if request.prompt is None:
            replies = {
                "Take a question": json.dumps(["Who wrote it?", "Where?", "When?", "Why?"]),
                "Decide how": "compound question",
                "Decide whether": "no",
                "Judge whether": "true" if "Doc: Bellini" in prompt else "what?",
                "Write the question": f"Question {size}?",
                "A search engine": f"Question {size}?",
            }
            known = (told for begin, told in replies.items() if begin in prompt)
            if len(request.messages) > 1:
                return f"Intermediate Answer: it is.\n\nRefined Query: query {size}"
            return next(known, "" if size % 3 == 0 else "Vincenzo Bellini")
        if "<search>" in prompt:
            return "<answer> Rome </answer>" if size % 3 == 0 else f"<search> {size} </search>"
        return f" Norma is opera {size}. It was heard in {GUESS}."


@pytest.mark.parametrize("name", [*WAYS])
@examples(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    route=st.sampled_from(["auto", "direct", "single", "compound", "complex"]),
    calls=st.integers(1, 40),
    retrievals=st.integers(1, 6),
    tokens=st.one_of(st.integers(1, 3000), st.just(400_000)),
    policy=st.sampled_from(["abstain", "closed_book", "top3_unfiltered"]),
)
async def test_no_question_spends_more_than_it_may(
    name: str, route: str, calls: int, retrievals: int, tokens: int, policy: str
) -> None:
    told = await ask(
        WAYS[name]._replace(route=route),
        Erratic(),
        {"Norma": [NORMA], "": [NORMA, BELLINI]},
        limits={"max_llm_calls": calls, "max_retrievals": retrievals, "max_tokens": tokens},
        settings={"answers": {"no_evidence": policy}, "routes": {"escalate": "always"}},
        last_resort=True,
    )
    usage = told.body.usage
    assert usage.llm_calls <= calls
    assert usage.retrievals <= retrievals
    most_of_a_call = 1500  # tokens: a prompt of these methods and its output
    assert usage.prompt_tokens + usage.completion_tokens <= tokens + most_of_a_call


@every([*WAYS])
@pytest.mark.parametrize("at", [0.0, 0.5])
async def test_a_lost_worker_changes_nothing_but_the_calls(way: Way, at: float) -> None:
    whole = await ask(way)
    for number in range(whole.calls):
        told = await ask(way, Answerer(failures={number: EngineInterrupted("lost")}, at=at))
        assert told.calls == whole.calls + 1, number
        assert outcome(told.body) == outcome(whole.body), number
        assert standing(told.events, "draft") == standing(whole.events, "draft"), number
    lost = dict.fromkeys(range(3), EngineInterrupted("lost"))
    told = await ask(way, Answerer(failures=lost))
    assert [event.problem.type for event in told.of(Failed)] == [
        "urn:revelator:problem:engine-unavailable"
    ]


def outcome(body: Answer) -> dict[str, Any]:
    """What does not depend on how often a call was made."""
    step = {"prompt_tokens", "completion_tokens", "llm_calls", "ms"}
    return body.model_dump(exclude={"timing_ms": True, "usage": True, "steps": {"__all__": step}})


@every([*WAYS])
async def test_failures_end_the_question(way: Way) -> None:
    for number in range((await ask(way)).engine.calls):
        told = await ask(way, Answerer(failures={number: EngineFailure("gone")}))
        assert [event.problem.detail for event in told.of(Failed)] == ["gone"], number
    if way.loop != "no_retrieval":
        told = await ask(way, hits={"": RetrievalFailure("all out")})
        assert [event.problem.detail for event in told.of(Failed)] == ["all out"]


async def test_a_bug_ends_the_question() -> None:
    told = await ask(WAYS["anrag"], Answerer(failures={0: ValueError("a bug")}))
    assert [event.problem.status for event in told.of(Failed)] == [500]


@every([*LOOPS])
async def test_the_parts_of_a_compound_question_are_drafts(way: Way) -> None:
    told = await ask(way._replace(route="compound"))
    assert told.body.answer == "Vincenzo Bellini, who was born in Catania."
    decomposed, *parts, merge = told.body.steps
    assert (decomposed.kind, merge.kind) == ("decompose", "merge")
    assert {step.id.partition(".")[0] for step in parts} == {"2"}
    assert {step.id.split(".")[1] for step in parts} == {"1", "2"}
    assert {event.step for event in told.of(Token) if event.role == "answer"} == {merge.id}
    assert bool(told.body.citations) == (way.loop != "no_retrieval")
    told = await ask(way._replace(route="compound"), limits={"max_retrievals": 1})
    assert told.body.stopped_by == ("answer" if way.loop == "no_retrieval" else "budget")


@every([name for name in SEARCHING if name not in FROM_SUB_ANSWERS])
@pytest.mark.parametrize(
    ("read", "confidence"), [("Catania", 0.9), ("Palermo", None)], ids=["agrees", "differs"]
)
async def test_an_encoder_verifies_the_answer(
    way: Way, read: str, confidence: float | None
) -> None:
    verifier = ScriptedExtractor({"Bellini": (read, 0.9)})
    body = (await ask(way, verifier=verifier)).body
    assert (body.answer, body.supported, body.confidence) == (
        "Catania", confidence is not None, confidence,
    )  # fmt: skip


NO_WEIGHTS = Labelling(WordLabeler({}, (), lacking="no weights"), WordFilter(()))
NO_FILTER = Labelling(WordLabeler({}, ()), WordFilter((), lacking="no filter"))
WRITES_A_CHAIN = ["dragin", "fixed_length", "fixed_sentence", "flare", "ircot", "iter_retgen"]
ASKS = {"baselines": {"flare_query": "questions"}}


@pytest.mark.parametrize(
    ("loops", "engine", "options", "told"),
    [
        ([*LOOPS], {}, {}, None),
        (["flare"], {}, {"settings": ASKS}, None),
        (["dragin"], {"token_signals": False}, {}, "does not provide token signals"),
        (["flare", *GATES], {"logprobs": False}, {}, "does not report the probabilities of its"),
        (WRITES_A_CHAIN, {}, {"prompts": "few"}, "have no dragin_demonstrations.txt"),
        (["flare"], {}, {"prompts": "compact", "settings": ASKS}, "have no flare_question.txt"),
        (["efficientrag"], {}, {"labelling": None}, "were not opened"),
        (["efficientrag"], {}, {"labelling": NO_WEIGHTS}, "no weights"),
        (["efficientrag"], {}, {"labelling": NO_FILTER}, "no filter"),
    ],
)
def test_what_a_deployment_lacks_is_named(
    loops: list[LoopName],
    engine: dict[str, Any],
    options: dict[str, Any],
    told: str | None,
    tmp_path: Path,
) -> None:
    (tmp_path / "answer.txt").write_text("$question ${passages}", encoding="utf-8")
    values = {"searcher": {"protocol": "search_r1"}} | options.get("settings", {})
    question = {"prompts": "full", "labelling": labelling()} | options
    question["settings"] = settings = Settings.model_validate(values)
    if question["prompts"] == "few":
        question["prompts"] = str(tmp_path)
    asked = inquiry(Answerer(**engine), ScriptedRetriever({}), QUESTION, **question)
    for loop in loops:
        lacking = LOOPS[loop].missing(asked.roles, settings)
        assert lacking == told or (told and told in str(lacking)), loop
