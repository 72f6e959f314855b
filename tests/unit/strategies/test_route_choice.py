"""Who chooses the route: the request, the settings, a sure classifier, or the model."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import RouteChosen
from service.core.domain import RouteName
from service.core.settings import Settings
from service.encoders.router import likeliest
from service.engines.base import Capabilities
from tests.stubs.fake_classifier import FakeClassifier
from tests.support.asking import events_of
from tests.support.scripted import ScriptStep

QUESTION = "Where do you keep money?"
ANSWERS = [
    ScriptStep(match="Task: closed", reply="in a bank", times=None),
    ScriptStep(match="Task: relevance", reply="false", times=None),
]
SMALL = Capabilities(passages=3)
ONLY: dict[str, Any] = {"allowed": ["single", "complex"]}
CHOICES = ("single-step question", "complex question")


def said(label: str, match: Any = "Task: route") -> ScriptStep:
    return ScriptStep(match=match, reply=f"{label} question", logprob=-0.1)


def told(request: Any) -> bool:
    return bool(request.choices == CHOICES)


@pytest.mark.parametrize(
    ("classifier", "script", "routes", "capabilities", "chosen"),
    [
        # a sure classifier saves the call
        (("direct", 0.98123456), [], {}, None, ("direct", "classifier", 0.9812)),
        # below its confidence the model is asked
        (("compound", 0.69), [said("straightforward")], {}, None, ("direct", "model", None)),
        # `direct` takes more confidence than other routes
        (("direct", 0.97, "single"), [], {}, None, ("single", "classifier", 0.97)),
        # by default a small model is not asked, and does not answer from memory
        (("single", 0.4), [], {"classifier": None}, SMALL, ("single", "classifier", 0.4)),
        (("direct", 0.99, "single"), [], {"classifier": None}, SMALL,
         ("single", "classifier", 0.99)),
        # a route that is not allowed becomes `single`, without the confidence of the other
        (("direct", 1.0), [], ONLY, None, ("single", "settings", None)),
        (None, [said("straightforward")], ONLY, None, ("single", "settings", None)),
        # the model may name the routes allowed and no other
        (None, [said("single-step", told)], ONLY, None, ("single", "model", None)),
    ],
)  # fmt: skip
async def test_who_chooses_which_route(
    classifier: Any, script: list[ScriptStep], routes: Any, capabilities: Any, chosen: Any
) -> None:
    asked = FakeClassifier(*classifier) if classifier else None
    settings = Settings.model_validate({"routes": {"classifier": "shipped", **routes}})
    events = await events_of(
        [*script, *ANSWERS], {}, QUESTION, capabilities, settings=settings, classifier=asked
    )
    (event,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (event.route, event.by, event.confidence, event.step) == (*chosen, "1")
    if asked:
        assert asked.asked[:1] == [QUESTION]
        assert "allowed" not in routes or asked.allowed == routes["allowed"]


async def test_a_route_that_the_request_names_asks_nobody() -> None:
    classifier = FakeClassifier("compound", 1.0)
    events = await events_of(ANSWERS, {}, QUESTION, route="direct", classifier=classifier)
    (event,) = [event for event in events if isinstance(event, RouteChosen)]
    assert (event.route, event.by, classifier.asked) == ("direct", "request", [])


def test_of_the_routes_left_the_likeliest_has_its_share_among_them() -> None:
    chances: dict[RouteName, float] = {"direct": 0.6, "single": 0.1, "complex": 0.3}
    assert likeliest(chances, ["single", "complex"]) == ("complex", pytest.approx(0.75))
    assert likeliest(chances, ["direct", "single", "complex"]) == ("direct", pytest.approx(0.6))
    assert likeliest(chances, ["compound"]) == ("compound", 0.0)
