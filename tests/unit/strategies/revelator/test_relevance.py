"""Who judges relevance: the model, or the labeler where the settings or a small model say so."""

from __future__ import annotations

import pytest

from service.answer.events import AnswerReady, Judgement
from service.core.settings import Settings
from service.encoders.base import Labelling, Tag
from service.engines.base import Capabilities
from service.strategies.pipeline import answer_stream
from tests.stubs.word_labelling import WordFilter, WordLabeler
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


def labelling(lacking: str | None = None) -> Labelling:
    tagged = {"norma": Tag.FINISH, "composed": Tag.CONTINUE}
    return Labelling(WordLabeler(tagged, (), lacking=lacking), WordFilter(()))


async def kept(
    script: list[ScriptStep], by: str | None, given: Labelling | None, *, small: bool
) -> list[str]:
    """Ids of the passages that the judge found relevant."""
    engine = ScriptedGenerator(script, capabilities=Capabilities(passages=3 if small else None))
    asked = inquiry(
        engine, ScriptedRetriever(HITS), QUESTION, route="single", labelling=given,
        settings=Settings.model_validate({"hanrag": {"judging": by}}),
    )  # fmt: skip
    events = [event async for event in answer_stream(asked)]
    engine.assert_finished()
    assert any(isinstance(event, AnswerReady) for event in events)
    found = [event for event in events if isinstance(event, Judgement)]
    assert [each.passage_id for each in found] == ["palermo", "norma", "bellini"]
    return [str(each.passage_id) for each in found if each.relevant]


async def test_a_small_model_does_not_judge_where_a_labeler_can() -> None:
    given = labelling()
    assert await kept([ANSWER], None, given, small=True) == ["norma", "bellini"]
    assert given.labeler.asked == [  # type: ignore[attr-defined]
        (QUESTION, ["Palermo: Palermo is a city in Sicily.",
                    "Norma: Norma is an opera by Vincenzo Bellini.",
                    "Bellini: Bellini composed operas."])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("by", "lacking", "small"),
    [(None, None, False), (None, "no checkpoint", True), ("pointwise", None, True)],
)
async def test_the_model_judges(by: str | None, lacking: str | None, small: bool) -> None:
    script = [*BY_MODEL, ANSWER]
    assert await kept(script, by, labelling(lacking), small=small) == ["bellini"]


async def test_the_settings_name_the_labeler_for_any_model() -> None:
    assert await kept([ANSWER], "labeler", labelling(), small=False) == ["norma", "bellini"]


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
    assert await kept(script, "listwise", None, small=False) == relevant


async def test_numbers_that_cannot_be_read_judge_nothing() -> None:
    script = [ScriptStep(match="Task: select", reply="I cannot say."), ANSWER]
    assert await kept(script, "listwise", None, small=False) == []
