"""The model judges the relevance of passages, each by a call or all by one."""

from __future__ import annotations

import pytest

from service.answer.events import AnswerReady, Judgement
from service.core.settings import Settings
from service.strategies.pipeline import answer_stream
from tests.support.asking import ScriptedRetriever, inquiry, passage
from tests.support.scripted import ScriptedGenerator, ScriptStep

pytestmark = pytest.mark.anyio

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
