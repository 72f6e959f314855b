"""Where no passage helps, further ones of the same search are judged."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.fold import collect
from service.core.domain import Answer, Passage
from service.core.errors import RetrievalFailure
from service.core.settings import Settings
from service.retrieval.base import SearchRequest, SearchResult
from service.strategies.pipeline import answer_stream
from tests.support.asking import ScriptedRetriever, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio

QUESTION = "Who composed Norma?"
NORMA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
NOISE = [passage(f"noise-{n}", f"Town {n} is in Sicily.", f"Town {n}") for n in range(8)]
ANSWER = ScriptStep(match="Task: answer", reply="Vincenzo Bellini")


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
