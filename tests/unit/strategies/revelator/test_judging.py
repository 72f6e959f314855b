"""The model judges the relevance of passages, each by a call or all by one."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import AnswerReady, BaseEvent, Judgement
from service.answer.fold import collect
from service.core.domain import Answer, Passage, Step
from service.core.errors import RetrievalFailure
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.engines.base import Capabilities
from service.retrieval.base import SearchRequest, SearchResult
from tests.support.asking import ScriptedRetriever, answer_stream, body_in, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

QUESTION = "Who composed Norma?"
HITS = {
    "": [
        passage("palermo", "Palermo is a city in Sicily.", "Palermo"),
        passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma"),
        passage("bellini", "Bellini composed operas.", "Bellini"),
    ]
}
BY_MODEL = [
    ScriptStep(match=["Task: relevance", "Doc: Bellini:"], reply="true"),
    ScriptStep(match="Task: relevance", reply="false", times=2),
]
ANSWER = ScriptStep(match="Task: answer", reply="Vincenzo Bellini")


async def kept(script: list[ScriptStep], by: str | None) -> list[str]:
    """Ids of the passages that the judge found relevant."""
    engine = ScriptedGenerator(script)
    asked = inquiry(
        engine, ScriptedRetriever(HITS), QUESTION, route="single",
        settings=Settings.model_validate({"hanrag": {"judging": by}}),
    )  # fmt: skip
    events = [event async for event in answer_stream(asked)]
    engine.assert_finished()
    assert any(isinstance(event, AnswerReady) for event in events)
    found = [event for event in events if isinstance(event, Judgement)]
    assert [each.passage_id for each in found] == ["palermo", "norma", "bellini"]
    return [str(each.passage_id) for each in found if each.relevant]


@pytest.mark.parametrize("by", [None, "pointwise"])
async def test_each_passage_is_judged_by_a_call(by: str | None) -> None:
    assert await kept([*BY_MODEL, ANSWER], by) == ["bellini"]


@pytest.mark.parametrize(
    ("reply", "relevant"),
    [
        ("2, 3", ["norma", "bellini"]),
        ('{"numbers": [3]}', ["bellini"]),
        ("Doc 3 tells of him.\nNumbers: 3, 9", ["bellini"]),
        ("none", []),
        ('{"numbers": []}', []),
    ],
)
async def test_one_call_judges_all_passages(reply: str, relevant: list[str]) -> None:
    script = [ScriptStep(match=["Task: select", "Doc3:"], reply=reply), *[ANSWER][: len(relevant)]]
    assert await kept(script, "listwise") == relevant


async def test_numbers_that_cannot_be_read_judge_nothing() -> None:
    script = [ScriptStep(match="Task: select", reply="I cannot say."), ANSWER]
    assert await kept(script, "listwise") == []


# ---- where no passage helps, further ones of the same search are judged

NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
NOISE = [passage(f"noise-{n}", f"Town {n} is in Sicily.", f"Town {n}") for n in range(8)]


def pointwise(count: int) -> list[ScriptStep]:
    noise = ScriptStep(match="Task: relevance", reply="false", times=count)
    return [ScriptStep(match=["Task: relevance", "Doc: Norma:"], reply="true", times=None), noise]


def listwise(*replies: str) -> list[ScriptStep]:
    return [ScriptStep(match="Task: select", reply=reply) for reply in replies]


async def asked(
    script: list[ScriptStep], at: int, judging: str | None = None, **options: Any
) -> tuple[Answer, list[SearchRequest]]:
    """Ask, with the passage that helps at rank `at`; 2, 4 and 6 passages are judged."""
    retriever = options.pop("retriever", None) or ScriptedRetriever({"": ranked(at)})
    engine = ScriptedGenerator(script)
    question = inquiry(
        engine, retriever, QUESTION, route="single", top_k=2,
        settings=Settings.model_validate({"hanrag": {"fetch_k": [2, 4, 6], "judging": judging}}),
        **options,
    )  # fmt: skip
    body = await collect(answer_stream(question))
    assert isinstance(body, Answer), body
    engine.assert_finished()
    return body, retriever.requests


def ranked(at: int) -> list[Passage]:
    return [*NOISE[: at - 1], NORMA, *NOISE[at - 1 :]]


@pytest.mark.parametrize(
    ("at", "shown", "judged", "replies"),
    [(2, 2, 1, ["2"]), (4, 4, 3, ["none", "2"]), (5, 6, 5, ["none", "none", "1"])],
)
async def test_further_passages_are_judged_until_one_helps(
    at: int, shown: int, judged: int, replies: list[str]
) -> None:
    for judging, script in (("pointwise", pointwise(judged)), ("listwise", listwise(*replies))):
        body, requests = await asked([*script, ANSWER], at, judging)

        (step,) = body.steps
        assert body.answer == "Vincenzo Bellini"
        assert [each.passage_id for each in step.passages] == [
            each.passage_id for each in ranked(at)[:shown]
        ]
        assert [each.rank for each in step.passages] == [*range(1, shown + 1)]
        assert [each.passage_id for each in step.passages if each.kept] == ["norma"]
        assert {each.reason for each in step.passages if not each.kept} == {"not relevant"}
        assert body.usage.retrievals == 1
        assert [each.top_k for each in requests] == [2] * (shown // 2)


async def test_what_does_not_help_is_not_searched_for_without_end() -> None:
    body, requests = await asked(pointwise(6), 7)
    assert not body.answered
    assert (len(requests), body.usage.llm_calls) == (3, 6)
    assert body.steps[0].flags == ["no_evidence"]


async def test_a_collection_that_has_no_more_is_not_searched_again() -> None:
    retriever = ScriptedRetriever({"": NOISE[:3]})
    body, requests = await asked(pointwise(3), 0, retriever=retriever)
    assert (len(requests), body.answered) == (2, False)

    retriever = ScriptedRetriever({"": NOISE[:1]})
    _, requests = await asked(pointwise(1), 0, retriever=retriever)
    assert len(requests) == 1


@pytest.mark.parametrize(("calls", "searches"), [(5, 1), (6, 2), (7, 2), (8, 3)])
async def test_the_limit_of_calls_leaves_room_to_answer(calls: int, searches: int) -> None:
    body, requests = await asked(pointwise(2 * searches), 9, limits={"max_llm_calls": calls})
    assert (len(requests), body.answered, body.stopped_by) == (searches, False, "answer")


class FailsLater(ScriptedRetriever):
    async def search(self, request: SearchRequest) -> SearchResult:
        if request.exclude:
            raise RetrievalFailure("the stores are unavailable")
        return await super().search(request)


async def test_a_failure_further_down_leaves_what_was_found() -> None:
    body, _ = await asked(pointwise(2), 9, retriever=FailsLater({"": NOISE}))
    (step,) = body.steps
    assert [each.passage_id for each in step.passages] == ["noise-0", "noise-1"]
    assert not body.answered


async def test_the_paper_judges_one_number_of_passages() -> None:
    assert Settings.model_validate({"hanrag": {"fetch_k": 10}}).hanrag.fetch_k == [10]
    for wrong in ([], [10, 10], [30, 10], [0], [101]):
        with pytest.raises(ValueError, match="fetch_k"):
            Settings.model_validate({"hanrag": {"fetch_k": wrong}})


# ---- judgements that cannot be read: room for a preface, and no verdict is not "irrelevant"

TWO = {"": HITS[""][:2]}
SHRUG = "I would have to see more of it"


async def asked_of_two(
    script: list[ScriptStep], *, capabilities: Capabilities | None = None, **options: Any
) -> tuple[list[BaseEvent], ScriptedGenerator, Metrics]:
    engine, metrics = ScriptedGenerator(script, capabilities=capabilities), Metrics()
    question = inquiry(engine, ScriptedRetriever(TWO), QUESTION, **options)
    question.metrics = metrics
    events = [event async for event in answer_stream(question)]
    engine.assert_finished()
    return events, engine, metrics


def steps(events: list[BaseEvent]) -> list[Step]:
    return body_in(events).steps


async def test_no_verdict_that_can_be_read_keeps_the_best_ranked() -> None:
    unread = ScriptStep(match="Task: relevance", reply=SHRUG, times=2)

    events, _, metrics = await asked_of_two([unread, ANSWER], route="single")

    (step,) = steps(events)
    assert step.answer == "Vincenzo Bellini"
    assert "unread_judgement" in step.flags
    assert "no_evidence" not in step.flags
    assert [p.kept for p in step.passages] == [True, True]
    said = [event for event in events if isinstance(event, Judgement)]
    assert [(each.relevant, each.kept, each.reason) for each in said] == [
        (None, True, "judgement could not be parsed")
    ] * 2
    assert b"revelator_unread_judgements_total 2.0" in metrics.render()


async def test_an_ending_that_cannot_be_read_is_flagged_and_is_not_done() -> None:
    script = [
        ScriptStep(match="Task: ending", reply=SHRUG, times=None),
        ScriptStep(match="Task: refine", reply=QUESTION),
        ScriptStep(match="Task: relevance", reply="true", times=2),
        ANSWER,
        ScriptStep(match="Task: final", reply="Vincenzo Bellini"),
    ]

    events, _, metrics = await asked_of_two(script, route="complex", max_steps=1)

    first = steps(events)[0]
    assert (first.kind, first.flags) == ("ending", ["unread_judgement"])
    assert [e.ending for e in events if isinstance(e, Judgement) and e.ending is not None] == [
        False, False,
    ]  # fmt: skip
    assert b"revelator_unread_judgements_total 2.0" in metrics.render()


@pytest.mark.parametrize(("held", "tokens"), [(True, 8), (False, 64)])
async def test_labels_have_room_for_a_preface_where_decoding_is_free(
    held: bool, tokens: int
) -> None:
    script = [
        ScriptStep(match="Task: route", reply="This is a single-step question."),
        ScriptStep(match="Task: relevance", reply="The passage helps, so: true", times=2),
        ANSWER,
    ]

    _, engine, _ = await asked_of_two(script, capabilities=Capabilities(choices=held))

    labels = [request.max_tokens for request in engine.requests if request.choices]
    assert labels == [tokens] * 3
