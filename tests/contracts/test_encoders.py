"""What every labeler, filter and classifier keeps to, the doubles of the tests included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import anyio
import pytest

from service.core.domain import RouteName
from service.core.errors import EngineFailure
from service.encoders.base import PassageLabel, Tag
from service.encoders.efficientrag import Labeler, QueryFilter
from service.encoders.router import SHIPPED, Classifier
from tests.conftest import need
from tests.stubs.fake_classifier import FakeClassifier
from tests.stubs.word_labelling import WordFilter, WordLabeler, write_checkpoint

TAGGED = {"opera": Tag.CONTINUE, "born": Tag.FINISH}
MARKS = frozenset({"norma", "opera", "born", "city", "italy"})
NORMA = "Norma: an opera of 1831"
BORN = "He was born in Italy " + "long ago " * 40
OTHER = "Nothing of use"


@pytest.fixture(params=["onnx", "words"])
def labeler(request: pytest.FixtureRequest, tmp_path: Path) -> Labeler:
    if request.param == "words":
        return WordLabeler(TAGGED, MARKS)
    return Labeler(write_checkpoint(tmp_path, "labeler", MARKS, TAGGED), threads=1)


@pytest.fixture(params=["onnx", "words"])
def query_filter(request: pytest.FixtureRequest, tmp_path: Path) -> QueryFilter:
    if request.param == "words":
        return WordFilter(MARKS)
    return QueryFilter(write_checkpoint(tmp_path, "filter", MARKS), threads=1)


async def test_every_passage_has_a_label_in_its_place(labeler: Labeler) -> None:
    assert labeler.problem() is None
    labels = await labeler.label("who wrote it?", [BORN, OTHER, NORMA])
    assert [label.tag for label in labels] == [Tag.FINISH, Tag.TERMINATE, Tag.CONTINUE]
    assert [label.info for label in labels] == ["born Italy", "", "Norma opera"]
    assert all(0.5 < label.probability <= 1 for label in labels)


async def test_no_passage_has_no_label(labeler: Labeler) -> None:
    assert await labeler.label("who?", []) == []


async def test_questions_that_come_together_get_their_own_labels(labeler: Labeler) -> None:
    passages = [[NORMA] * n + [BORN] * (10 - n) for n in range(11)]
    answers: dict[int, list[PassageLabel]] = {}

    async def ask(n: int) -> None:
        answers[n] = await labeler.label(f"question {n}", passages[n])

    async with anyio.create_task_group() as group:
        for n in range(11):
            group.start_soon(ask, n)
    for n in range(11):
        expected = [Tag.CONTINUE] * n + [Tag.FINISH] * (10 - n)
        assert [label.tag for label in answers[n]] == expected


async def test_whoever_leaves_takes_nobody_along(labeler: Labeler) -> None:
    kept: list[PassageLabel] = []

    async def stay() -> None:
        kept.extend(await labeler.label("who?", [NORMA]))

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(stay)
            scope.cancel()
            await labeler.label("who?", [BORN])
    assert [label.tag for label in kept] == [Tag.CONTINUE]


async def test_the_filter_keeps_words_of_query_and_infos_in_order(
    query_filter: QueryFilter,
) -> None:
    assert query_filter.problem() is None
    kept = await query_filter.filter("In which city was he born?", ["Norma opera", "of Italy"])
    assert kept == "city born Norma opera Italy"


async def test_the_filter_may_keep_nothing(query_filter: QueryFilter) -> None:
    assert await query_filter.filter("Who was it?", []) == ""


async def test_markers_are_never_kept(tmp_path: Path) -> None:
    greedy = QueryFilter(
        write_checkpoint(tmp_path, "filter", {"query", "info", ":", ";", "who"}), threads=1
    )
    assert await greedy.filter("Who?", ["a", "b"]) == "Who"


async def test_outputs_that_are_no_numbers_are_a_failure(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "labeler", MARKS, TAGGED, sure=float("nan"))
    with pytest.raises(EngineFailure, match="not all finite"):
        await Labeler(folder, threads=1).label("who?", [NORMA])


# What every classifier owes: a route and its probability, whatever the question.


def shipped() -> Classifier:
    need("onnxruntime")
    from service.encoders.router import Classifier

    return Classifier(SHIPPED)


@pytest.fixture(params=[shipped, lambda: FakeClassifier("single", 0.9)], ids=["minilm", "fake"])
def classifier(request: pytest.FixtureRequest) -> Classifier:
    make: Callable[[], Classifier] = request.param
    return make()


@pytest.mark.parametrize(
    "question", ["Who directed Heat?", "?", "\u2028 \u0000", "wo " * 1300, "谁？", "[SEP] [CLS]"]
)
async def test_any_question_has_a_route(classifier: Classifier, question: str) -> None:
    route, probability = await classifier.classify(question)
    assert route in get_args(RouteName)
    assert 0 <= probability <= 1
    assert type(probability) is float


async def test_the_same_question_alone_or_among_others(classifier: Classifier) -> None:
    questions = [f"Who directed {title} and when was it made?" for title in ("Heat", "Norma")] * 4
    alone = [await classifier.classify(question) for question in questions]
    together = await asyncio.gather(*map(classifier.classify, questions))
    assert together == alone


async def test_a_caller_that_leaves_takes_nobody_along(classifier: Classifier) -> None:
    with anyio.move_on_after(0):
        await classifier.classify("Who?")
    assert (await classifier.classify("Who directed Heat?")).probability > 0
