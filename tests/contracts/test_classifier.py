"""What every classifier owes: a route and its probability, whatever the question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import get_args

import anyio
import pytest

from service.core.domain import RouteName
from service.encoders.router import SHIPPED, Classifier
from tests.conftest import need
from tests.stubs.fake_classifier import FakeClassifier


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
