"""Answers that nothing bears, on every route and in every loop, under each setting."""

from __future__ import annotations

from typing import Any

import pytest

from service.answer.events import Token, Withdraw
from service.core.domain import Answer
from service.core.settings import Settings
from tests.support.asking import body_in, body_of, events_of
from tests.support.opera import (
    BELLINI,
    HOPS,
    NOISE,
    NORMA,
    QUESTION,
    decomposed,
    flags,
    relevant,
    say,
)
from tests.support.scripted import ScriptStep


def answers(**values: str) -> Settings:
    return Settings.model_validate({"answers": values})


def cited(body: Answer) -> list[str]:
    return [citation.passage_id for citation in body.citations]


async def single(reply: str, question: str = "Who composed Norma?", **options: Any) -> Answer:
    script = [*relevant("Norma"), say("Task: answer", reply)]
    return await body_of(script, {"": [NORMA, NOISE]}, question, route="single", **options)


async def test_an_answer_that_nothing_bears_is_flagged_and_cited_by_nothing() -> None:
    body = await single("Giuseppe Verdi")
    assert (body.answer, body.answered) == ("Giuseppe Verdi", True)
    assert body.steps[0].flags == ["unsupported"]
    assert body.citations == []


async def test_no_is_not_borne_by_a_passage_that_does_not_tell_of_the_question() -> None:
    body = await single("no", "Was Aida composed in Milan?")
    assert (flags(body), cited(body)) == ({"unsupported"}, [])
    body = await single("no", "Was the opera Norma composed by an Italian?")
    assert (flags(body), cited(body)) == ({"unsupported"}, [])
    body = await single("yes", "Is Norma, the opera, by Bellini?")
    assert (flags(body), cited(body)) == (set(), ["norma"])


async def test_the_settings_may_keep_it_back() -> None:
    script = [*relevant("Norma"), say("Task: answer", "Giuseppe Verdi")]
    asked: dict[str, Any] = {"route": "single", "settings": answers(unsupported="abstain")}
    events = await events_of(script, {"": [NORMA, NOISE]}, "Who?", **asked)
    body = body_in(events)
    assert (body.answered, body.answer) == (False, Settings().answers.no_answer_text)
    assert flags(body) == {"unsupported"}
    assert [(e.step, e.reason) for e in events if isinstance(e, Withdraw)] == [("1", "unsupported")]
    assert [e.text for e in events if isinstance(e, Token)][-1] == body.answer


def hops(final: str, last: str = "Catania") -> list[ScriptStep]:
    return [
        say(["Task: ending", '""nothing""'], "no"),
        say(["Task: refine", '""nothing""'], "Who composed the opera Norma?"),
        *relevant("Norma", "Bellini"),
        say(["Task: answer", "Who composed"], "Vincenzo Bellini"),
        say(["Task: ending", "**answer-2**"], "yes"),
        say("Task: ending", "no"),
        say(["Task: refine", "**answer-1**"], "In which city was Vincenzo Bellini born?"),
        say(["Task: answer", "In which city was Vincenzo"], last),
        say("Task: final", final),
    ]


async def test_a_final_answer_is_borne_by_sub_answers_that_are_supported() -> None:
    body = await body_of(hops("Catania"), HOPS, QUESTION, route="complex")
    assert (flags(body), cited(body)) == (set(), ["norma", "bellini"])


async def test_a_final_answer_from_an_unsupported_sub_answer_is_unsupported() -> None:
    body = await body_of(hops("Palermo", last="Palermo"), HOPS, QUESTION, route="complex")
    assert [step.flags for step in body.steps] == [[], [], ["unsupported"], ["unsupported"]]
    assert cited(body) == []


@pytest.mark.parametrize(("last", "expected"), [("Catania", set()), ("Rome", {"unsupported"})])
async def test_yes_follows_from_supported_sub_answers(last: str, expected: set[str]) -> None:
    body = await body_of(hops("yes", last=last), HOPS, QUESTION, route="complex")
    assert flags(body) == expected
    assert cited(body) == ([] if expected else ["norma", "bellini"])


async def test_a_merged_answer_cites_by_its_parts() -> None:
    script = [
        decomposed("Who composed Norma?", "Where was Bellini born?"),
        *relevant("Norma", "Bellini"),
        say(["Task: answer", "Who composed"], "Vincenzo Bellini"),
        say(["Task: answer", "Where was"], "Rome"),
        say("Task: merge", "Norma was composed by Vincenzo Bellini, and he was born there."),
    ]
    hits = {"Norma": [NORMA, NOISE], "Bellini": [BELLINI]}
    asked = "Who composed Norma and where was Bellini born?"
    body = await body_of(script, hits, asked, route="compound")
    assert [step.flags for step in body.steps] == [[], [], ["unsupported"], []]
    assert cited(body) == ["norma"]


async def test_a_merged_answer_may_say_that_a_part_was_not_found() -> None:
    script = [
        decomposed("Who composed Norma?", "Who sang Norma?"),
        *relevant("Norma"),
        say(["Task: answer", "Who composed"], "Vincenzo Bellini"),
        say(["Task: answer", "Who sang"], "no answer found"),
        say("Task: merge", "Vincenzo Bellini and no answer found"),
    ]
    asked = "Who composed Norma and who sang it?"
    body = await body_of(script, {"Norma": [NORMA]}, asked, route="compound")
    assert "unsupported" not in flags(body)
    assert cited(body) == ["norma"]


ASKS = "Analysis: The composer.\n\nInitial Query: composer of Norma"


@pytest.mark.parametrize(
    ("unsupported", "flagged", "answered"),
    [
        ("flag", "unsupported", True),
        ("abstain", "unsupported", False),
        ("allow", "closed_book", True),
    ],
)
async def test_autorag_is_held_to_the_same_settings(
    unsupported: str, flagged: str, answered: bool
) -> None:
    script = [ScriptStep(ASKS), ScriptStep("Intermediate Answer_1: ?\n\nFinal Answer: Aida")]
    settings = answers(unsupported=unsupported)
    body = await body_of(
        script, {"": [NORMA]}, QUESTION, route="single", loop="autorag", settings=settings
    )
    assert flagged in body.steps[-1].flags
    assert (body.answered, body.citations) == (answered, [])


@pytest.mark.parametrize("policy", ["flag", "abstain", "allow"])
def test_only_the_settings_invite_memory(policy: str) -> None:
    from service.prompts.templates import TemplateSet

    memory = answers(unsupported=policy).answers.invites_memory
    prompt = TemplateSet("full").fill("final", "Q?", pairs=[], memory=memory)
    assert ("what you know" in prompt) == (policy == "allow")
