"""No run is worse than one search: the question itself is searched before the service abstains."""

from __future__ import annotations

from typing import get_args

import pytest

from service.core.domain import Answer, LoopName, Passage, RouteName
from service.core.settings import Settings
from service.core.settings.server import AnswerSettings
from service.strategies import routes
from service.strategies.base import Method
from service.strategies.registry import LOOPS
from tests.support.asking import body_of
from tests.support.opera import NOISE, NORMA, QUESTION, relevant, say
from tests.support.scripted import ScriptStep

HITS = {QUESTION: [NORMA, NOISE], "": [NOISE]}


def told(body: Answer) -> list[tuple[str, str | None, str | None]]:
    return [(step.kind, step.query, step.answer) for step in body.steps if step.query]


async def test_a_complex_question_without_evidence_is_searched_as_it_is() -> None:
    script = [
        say("Task: ending", "no"),
        say("Task: refine", "Who made it?", 3),
        *relevant("Norma"),
        say(["Task: answer", QUESTION, "Doc1"], "Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, route="complex")
    assert told(body) == [("retrieve", "Who made it?", None), ("retrieve", QUESTION, "Bellini")]
    assert (body.answer, body.answered, body.stopped_by) == ("Bellini", True, "answer")
    assert [citation.passage_id for citation in body.citations] == ["norma"]


@pytest.mark.parametrize(
    ("script", "kinds", "answer"),
    [
        # a question that was searched is not searched again
        ([say("Task: ending", "no"), say("Task: refine", QUESTION.upper(), 3),
          say("Task: relevance", "false", None)], ["ending", "retrieve", "retrieve"], None),
        # memory that declines is followed by a search
        ([say("Task: ending", "yes"), say("Task: final", "", 2), *relevant("Norma"),
          say(["Task: answer", QUESTION], "Bellini")], ["ending", "answer", "retrieve"], "Bellini"),
    ],
)  # fmt: skip
async def test_what_follows_a_loop_without_an_answer(
    script: list[ScriptStep], kinds: list[str], answer: str | None
) -> None:
    body = await body_of(script, HITS, QUESTION, route="complex")
    assert [step.kind for step in body.steps] == kinds
    assert (body.answered, body.usage.retrievals) == (answer is not None, 1)
    assert answer in (None, body.answer)


FOUND: dict[str, list[Passage]] = {
    "nothing": [],
    "contradicting": [NORMA, Passage("other", "Norma", "Norma was composed by Verdi.")],
    "repeated": [NORMA, NORMA],
}


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_without_an_answer_has_none(
    loop: LoopName, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a search would find: no other method answers for it, not even by a call."""

    async def run(self: Method) -> None:
        async with self.step("retrieve") as step:
            await step.search("other words", 3)

    for kind in (LOOPS[loop], routes.Complex):
        monkeypatch.setattr(kind, "run", run)
    options = {"route": "complex", "loop": loop, "last_resort": False, "prompts": "full"}
    body = await body_of([], {"": FOUND[found]}, QUESTION, **options)
    assert (body.answered, len(body.steps), body.usage.llm_calls) == (False, 1, 0)


OFF = Settings(answers=AnswerSettings(last_resort=False))


async def test_the_setting_switches_it_off_and_a_request_on() -> None:
    script = [say("Task: closed", "no answer found")]
    body = await body_of(script, HITS, QUESTION, route="direct", settings=OFF)
    assert (body.answered, body.usage.retrievals) == (False, 0)
    script += [*relevant("Norma"), say(["Task: answer", QUESTION], "Bellini")]
    options = {"settings": OFF, "last_resort": True}
    body = await body_of(script, HITS, QUESTION, route="direct", **options)
    assert (body.answer, body.steps[-1].flags) == ("Bellini", ["last_resort"])


@pytest.mark.parametrize("route", [name for name in get_args(RouteName) if name != "compound"])
async def test_an_answer_needs_a_search_where_the_settings_say_so(route: str) -> None:
    settings = Settings(answers=AnswerSettings(require_search=True))
    script = [
        ScriptStep("yes", match="Task: ending", times=None),
        ScriptStep("Verdi", match=["Task: final"], times=None),
        ScriptStep("Verdi", match=["Task: closed"], times=None),
        *relevant("Norma"),
        say(["Task: answer", QUESTION], "Bellini"),
    ]
    body = await body_of(script, HITS, QUESTION, route=route, settings=settings)
    assert (body.answer, body.usage.retrievals) == ("Bellini", 1)
