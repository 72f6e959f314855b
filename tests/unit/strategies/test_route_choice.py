"""Who chooses the route: the classifier where it is sure, else the model."""

from __future__ import annotations

import pytest

from service.answer.events import RouteChosen
from service.core.domain import RouteName
from service.core.settings import Settings
from service.encoders.router import likeliest
from service.engines.base import Capabilities
from tests.stubs.fake_classifier import FakeClassifier
from tests.support.asking import body_of, events_of
from tests.support.scripted import ScriptStep

CLOSED = ScriptStep(match="Task: closed", reply="in a bank")
QUESTION = "Where do you keep money?"


def settings(classifier: str | None = "shipped", **routes: object) -> Settings:
    return Settings.model_validate({"routes": {"classifier": classifier, **routes}})


async def test_a_sure_classifier_saves_the_call() -> None:
    classifier = FakeClassifier("direct", 0.98123456)
    events = await events_of([CLOSED], {}, QUESTION, settings=settings(), classifier=classifier)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by, chosen.confidence) == ("direct", "classifier", 0.9812)
    assert classifier.asked == [QUESTION]
    assert chosen.step == "1"


async def test_below_its_confidence_it_abstains_and_the_model_is_asked() -> None:
    classifier = FakeClassifier("compound", 0.69)
    routed = ScriptStep(match="Task: route", reply="straightforward question", logprob=-0.1)
    events = await events_of(
        [routed, CLOSED], {}, QUESTION, settings=settings(), classifier=classifier
    )
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("direct", "model")
    assert chosen.confidence != 0.69


async def test_direct_takes_more_confidence_than_other_routes() -> None:
    classifier = FakeClassifier("direct", 0.97, second="single")
    said = [ScriptStep(match="Task: relevance", reply="false", times=None)]
    events = await events_of(said, {}, QUESTION, settings=settings(), classifier=classifier)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("single", "classifier")


async def test_by_default_the_small_model_is_not_asked() -> None:
    classifier = FakeClassifier("single", 0.4)
    said = [ScriptStep(match="Task: relevance", reply="false", times=None)]
    unsure = settings(None)
    small = Capabilities(passages=3)
    events = await events_of(said, {}, QUESTION, small, settings=unsure, classifier=classifier)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by, chosen.confidence) == ("single", "classifier", 0.4)


async def test_the_small_model_does_not_answer_from_memory() -> None:
    classifier = FakeClassifier("direct", 0.99, second="single")
    said = [ScriptStep(match="Task: relevance", reply="false", times=None)]
    small = Capabilities(passages=3)
    events = await events_of(
        said, {}, QUESTION, small, settings=settings(None), classifier=classifier
    )
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert chosen.route == "single"


async def test_a_route_that_is_named_or_alone_allowed_asks_nobody() -> None:
    classifier = FakeClassifier("compound", 1.0)
    body = await body_of([CLOSED], {}, QUESTION, route="direct", classifier=classifier)
    assert (body.route, classifier.asked) == ("direct", [])


async def test_a_route_that_is_not_allowed_falls_to_single() -> None:
    classifier = FakeClassifier("direct", 1.0)
    only = settings(allowed=["single", "complex"])
    said = [ScriptStep(match="Task: relevance", reply="false", times=None)]
    events = await events_of(said, {}, QUESTION, settings=only, classifier=classifier)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("single", "settings")


async def test_the_model_may_name_the_routes_allowed_and_no_other() -> None:
    only = settings(allowed=["single", "complex"])
    routed = ScriptStep(
        match=lambda request: request.choices == ("single-step question", "complex question"),
        reply="single-step question",
    )
    said = [routed, ScriptStep(match="Task: relevance", reply="false", times=None)]
    events = await events_of(said, {}, QUESTION, settings=only)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by) == ("single", "model")


async def test_the_classifier_is_told_the_routes_allowed() -> None:
    classifier = FakeClassifier("single", 1.0)
    only = settings(allowed=["single", "complex"])
    said = [ScriptStep(match="Task: relevance", reply="false", times=None)]
    await events_of(said, {}, QUESTION, settings=only, classifier=classifier)
    assert classifier.allowed == ["single", "complex"]


async def test_a_route_that_was_replaced_has_no_confidence() -> None:
    only = settings(allowed=["single", "complex"])
    said = [
        ScriptStep(match="Task: route", reply="straightforward question", logprob=-0.1),
        ScriptStep(match="Task: relevance", reply="false", times=None),
    ]
    events = await events_of(said, {}, QUESTION, settings=only)
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (chosen.route, chosen.by, chosen.confidence) == ("single", "settings", None)


def test_of_the_routes_left_the_likeliest_has_its_share_among_them() -> None:
    chances: dict[RouteName, float] = {"direct": 0.6, "single": 0.1, "complex": 0.3}
    assert likeliest(chances, ["single", "complex"]) == ("complex", pytest.approx(0.75))
    assert likeliest(chances, ["direct", "single", "complex"]) == ("direct", pytest.approx(0.6))
    assert likeliest(chances, ["compound"]) == ("compound", 0.0)
