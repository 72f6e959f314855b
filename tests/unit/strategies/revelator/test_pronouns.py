"""Pronouns of sub-questions, which are searched and read one by one (METHODS.md §1.3)."""

from __future__ import annotations

import json

import pytest

from service.prompts.templates import Pair
from service.strategies.rules import resolve_pronouns
from tests.support.asking import body_of, passage
from tests.support.scripted import ScriptStep

BEER = "What is the flagship beer of Fjordheim Brewery?"
DUNE = "Who wrote Dune?"


@pytest.mark.parametrize(
    ("earlier", "question", "standing"),
    [
        (BEER, "How strong is it?", "How strong is the flagship beer of Fjordheim Brewery?"),
        (
            BEER,
            "And what is its colour?",
            "And what is the flagship beer of Fjordheim Brewery's colour?",
        ),
        (
            "What are your opening hours?",
            "Are they the same on Sundays?",
            "Are your opening hours the same on Sundays?",
        ),
        ("When was Narvik Rederi founded?", "Where is it based?", "Where is Narvik Rederi based?"),
        ("How high is the Eiffel Tower?", "Who built it?", "Who built the Eiffel Tower?"),
        ("What is the Eiffel Tower made of?", "How tall is it?", "How tall is the Eiffel Tower?"),
        (DUNE, "When was it published?", "When was Dune published?"),
        (DUNE, "When was he born?", "When was the person who wrote Dune born?"),
        (
            "Who is the director of Dune?",
            "What is his nationality?",
            "What is the director of Dune's nationality?",
        ),
        ("Who is the director of Dune?", "When was it released?", "When was Dune released?"),
        (
            "Who are the founders of Orkla?",
            "Where did they meet?",
            "Where did the founders of Orkla meet?",
        ),
        ("When was Marie Curie born?", "Where did she die?", "Where did Marie Curie die?"),
        ("Where did Marie Curie study?", "Who was her husband?", "Who was Marie Curie's husband?"),
        ("Where did Marie Curie study?", "Who taught her?", "Who taught Marie Curie?"),
    ],
)
def test_what_a_pronoun_stands_for(earlier: str, question: str, standing: str) -> None:
    assert resolve_pronouns(question, [Pair(earlier, None)]) == standing


@pytest.mark.parametrize(
    ("earlier", "question"),
    [
        ("Is Oslo larger than Bergen?", "When was it founded?"),  # which of the two?
        ("When does the café open?", "Is it closed on Mondays?"),
        (BEER, "How long does it take to brew?"),
        (BEER, "What time is it?"),
        (BEER, "Where did Ida Moe learn her trade?"),
        (BEER, "Does the brewery sell it?"),
        (BEER, "Who founded Fjordheim Brewery?"),
    ],
)
def test_what_is_not_plain_stays(earlier: str, question: str) -> None:
    assert resolve_pronouns(question, [Pair(earlier, None)]) == question


BREWERY = passage("brewery", "The flagship beer of Fjordheim Brewery has 7.2 %.", "Brewery")


@pytest.mark.anyio
async def test_parts_of_a_compound_question_are_searched_without_pronouns() -> None:
    parts = json.dumps({"thought": "two", "decomposition": [BEER, "How strong is it?"]})
    script = [
        ScriptStep(parts, "Task: decompose"),
        ScriptStep("true", "Task: relevance", times=2),
        ScriptStep("Polar Night", ["Task: answer", BEER]),
        ScriptStep("7.2 %", ["Task: answer", "How strong is the flagship beer of Fjordheim"]),
        ScriptStep("Polar Night, 7.2 %", "Task: merge"),
    ]
    asked = "What is the flagship beer of Fjordheim Brewery and how strong is it?"
    body = await body_of(script, {"": [BREWERY]}, asked, route="compound")
    assert (body.answer, body.steps[2].query) == (
        "Polar Night, 7.2 %", "How strong is the flagship beer of Fjordheim Brewery?",
    )  # fmt: skip


@pytest.mark.anyio
async def test_a_next_question_names_what_was_found() -> None:
    script = [
        ScriptStep("no", "Task: ending"),
        ScriptStep(BEER, "Task: refine"),
        ScriptStep("true", "Task: relevance", times=2),
        ScriptStep("Polar Night", ["Task: answer", BEER]),
        ScriptStep("no", "Task: ending"),
        ScriptStep("How strong is it?", "Task: refine"),
        ScriptStep("7.2 %", ["Task: answer", "How strong is Polar Night?"]),
        ScriptStep("yes", "Task: ending"),
        ScriptStep("7.2 %", "Task: final"),
    ]
    asked = "How strong is the flagship beer of Fjordheim Brewery?"
    body = await body_of(script, {"": [BREWERY]}, asked, route="complex", loop="anrag")
    assert (body.answer, body.steps[2].query) == ("7.2 %", "How strong is Polar Night?")
