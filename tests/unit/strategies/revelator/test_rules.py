"""REFINE of a bridge by substitution (METHODS.md §1.3)."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from service.prompts.templates import Pair
from service.strategies.planner import SmallPlanner
from service.strategies.rules import (
    bridge_answer,
    follow_up,
    last_clause,
    resolve_pronouns,
    substitute_answers,
)
from tests.support.asking import body_of, passage
from tests.support.scripted import SHORT_FORMS, ScriptStep

LAND = [Pair("Who directed Land of Peace?", "Kamal El Sheikh")]
DOG = [Pair("Who directed A Dog's Purpose?", "Lasse Hallström")]
NORMA = [Pair("Who composed the opera Norma?", "Vincenzo Bellini")]
MARKED, UNMARKED = re.compile(r"\[.*\]"), str.maketrans("", "", "[]")
FATHER = [Pair("Who was Ylenia Carrisi's father?", "Albano Carrisi")]


@pytest.mark.parametrize(
    ("described", "pairs"),
    [
        ("Of which nationality is [the person who directed Land of Peace]?", LAND),
        ("Where was the death of [Land of Peace's director]?", LAND),
        ("When did [the director of the film Land of Peace] die?", LAND),
        ("Where did [the director of film Land of Peace (1957 film)] study?", LAND),
        ("Who is the spouse of [A Dog's Purpose's director]?", DOG),
        ("What is [the director of the film A Dog's Purpose]'s birth date?", DOG),
        ("In which city was [the composer of the opera Norma] born?", NORMA),
        ("What is the place of birth of [Norma's composer]?", NORMA),
        ("When was [Ylenia Carrisi's father] born?", FATHER),
        (
            "What was [the film Do You Believe?'s director] known for?",
            [Pair("Who directed Do You Believe?", "Jon Gunn")],
        ),
        (
            "When did [the wife of the director of Land of Peace] die?",
            [*LAND, Pair("Who is the wife of Kamal El Sheikh?", "Mona Zaki")],
        ),
        (
            "In which place was [the actor who starred in the film Help!] born?",
            [Pair("Who starred in Help!?", "Ida Moe")],
        ),
        (
            "What is the date of death of [the composer of Help!]?",
            [Pair("Who composed Help!?", "Ida Moe")],
        ),
        (
            "Which country is [the company that published Vik] from?",
            [Pair("Which company published Vik?", "Orkla")],
        ),
    ],
)
def test_what_was_found_takes_the_place_of_its_description(
    described: str, pairs: list[Pair]
) -> None:
    """Of `described`, what is between brackets."""
    question = described.translate(UNMARKED)
    left = MARKED.sub(str(pairs[-1].answer), described)
    assert substitute_answers(question, pairs) == left
    assert bridge_answer(question, [*pairs, Pair(left, "1990")]) == "1990"


@pytest.mark.parametrize(
    ("question", "pairs"),
    [
        ("When did the wife of the director of Land of Peace die?", LAND),
        ("Where did the director of Land of Peace's wife study?", LAND),
        ("Who is the paternal grandfather of Ylenia Carrisi?", FATHER),
        ("Who is Ylenia Carrisi's paternal grandfather?", FATHER),
        ("Who is Ylenia Carrisi's father-in-law?", FATHER),
        ("Is the director of Land of Peace Egyptian?", LAND),
        ("Who was born first, the director of Land of Peace or Ida Moe?", LAND),
        ("Who directed Land of Peace?", LAND),
        ("In which city where the director of Land of Peace lived is the Nile?", LAND),
        ("When was Ida Moe born?", LAND),
        (
            "When did the director of Land of Peace die?",
            [Pair("Who directed Land of Peace?", None)],
        ),
        (
            "When did the director of Land of Peace die?",
            [Pair(LAND[0].question, "an unknown person")],
        ),
        ("When did the director of Land of Peace die?", []),
    ],
)
def test_what_is_no_plain_description_is_left(question: str, pairs: list[Pair]) -> None:
    assert substitute_answers(question, pairs) is None
    assert bridge_answer(question, pairs) is None


OPERA = passage("norma", "Norma is an opera by Vincenzo Bellini.", "Norma")
BELLINI = passage("bellini", "Vincenzo Bellini was a Sicilian.", "Bellini")
ASKED = "Of which nationality is the composer of the opera Norma?"
CROSSING = "Of which nationality is Vincenzo Bellini?"
FIRST = [
    ScriptStep("no", "Task: ending"),
    ScriptStep("Who composed the opera Norma?", "Task: refine"),
    ScriptStep("Vincenzo Bellini", ["Task: answer", "Who composed"]),
]
SMALL = replace(SHORT_FORMS, passages=3)
JUDGED = ScriptStep("true", "Task: relevance", times=None)
HITS = {"nationality": [BELLINI], "": [OPERA]}


async def test_a_small_model_is_not_asked_for_the_second_hop() -> None:
    script = [*FIRST, JUDGED, ScriptStep("Sicilian", ["Task: answer", CROSSING])]
    body = await body_of(script, HITS, ASKED, capabilities=SMALL, route="complex", loop="anrag")
    assert [step.query for step in body.steps if step.query][1:] == [CROSSING]
    assert (body.answer, body.steps[-1].flags, body.usage.llm_calls) == (
        "Sicilian",
        ["computed"],
        6,
    )
    assert [citation.passage_id for citation in body.citations] == ["norma", "bellini"]


async def test_where_the_second_hop_finds_nothing_the_model_is_asked() -> None:
    script = [
        *FIRST,
        JUDGED,
        ScriptStep("no answer found", ["Task: answer", CROSSING]),
        ScriptStep("Where was Vincenzo Bellini from?", ["Task: refine", "Vincenzo Bellini"]),
        ScriptStep("Sicily", ["Task: answer", "Where was"]),
        ScriptStep("yes", "Task: ending"),
        ScriptStep("Sicilian", "Task: final"),
    ]
    hits = {"": [BELLINI], "opera": [OPERA]}
    body = await body_of(script, hits, ASKED, capabilities=SMALL, route="complex", loop="anrag")
    assert body.answer == "Sicilian"


@pytest.mark.parametrize(
    ("described", "asked"),
    [
        (
            "What is the name of the airport in [the city where WILM is licensed to broadcast]?",
            "In which city is WILM licensed to broadcast?",
        ),
        (
            "What currency predated the Euro in [the country Signmark is from]?",
            "Which country is Signmark from?",
        ),
        (
            "Who was first president of [the association which published the Journal of Physics]?",
            "Which association published the Journal of Physics?",
        ),
        (
            "In what county is [the city where Harris W. Fawell was born]?",
            "In which city was Harris W. Fawell born?",
        ),
        (
            "Who lives in the birthplace of the person who made The Oddventures of Mr. Cool?",
            "Who made The Oddventures of Mr. Cool?",
        ),
        ("What was the name of the storm that hit Jacksonville?", "Which storm hit Jacksonville?"),
    ],
)
def test_the_last_clause_is_a_question_of_its_own(described: str, asked: str) -> None:
    question = described.translate(UNMARKED)
    left = MARKED.sub("Narvik", described) if "[" in described else None
    clause = last_clause(question)
    assert clause is not None
    assert clause.question == asked
    assert substitute_answers(question, [Pair(asked, "Narvik")]) == left


@pytest.mark.parametrize(
    "question",
    [
        "Who was president when the area where Intrepid Wind Farm is located became a state?",
        "What time does the state where Greenfield High is stop selling beer?",
        "What is the country where Baure is located named after?",
        "Where did the band form that made the live album Maiden Japan?",
        "Who composed Norma?",
        "where is the shop that opens first",
    ],
)
def test_what_ends_in_no_plain_clause(question: str) -> None:
    assert last_clause(question) is None


async def test_a_small_model_asks_the_last_clause_first() -> None:
    asked = "What is the airport in the city where Norma was performed?"
    clause, crossing = "In which city was Norma performed?", "What is the airport in Milan?"
    script = [
        ScriptStep("no", "Task: ending"),
        JUDGED,
        ScriptStep("Milan", ["Task: answer", clause]),
        ScriptStep("Linate", ["Task: answer", crossing]),
    ]
    body = await body_of(script, {"": [OPERA]}, asked, capabilities=SMALL, route="complex")
    assert [step.query for step in body.steps if step.query] == [clause, crossing]
    assert (body.answer, body.usage.llm_calls) == ("Linate", 5)


# ---- pronouns of sub-questions, which are searched and read one by one (METHODS.md §1.3)

BEER = "What is the flagship beer of Fjordheim Brewery?"
DUNE = "Who wrote Dune?"


@pytest.mark.parametrize(
    ("earlier", "question", "thing"),
    [
        (BEER, "How strong is [it]?", "the flagship beer of Fjordheim Brewery"),
        (BEER, "And what is [its] colour?", "the flagship beer of Fjordheim Brewery's"),
        ("What are your opening hours?", "Are [they] the same on Sundays?", "your opening hours"),
        ("When was Narvik Rederi founded?", "Where is [it] based?", "Narvik Rederi"),
        ("How high is the Eiffel Tower?", "Who built [it]?", "the Eiffel Tower"),
        ("What is the Eiffel Tower made of?", "How tall is [it]?", "the Eiffel Tower"),
        (DUNE, "When was [it] published?", "Dune"),
        (DUNE, "When was [he] born?", "the person who wrote Dune"),
        ("Who is the director of Dune?", "What is [his] nationality?", "the director of Dune's"),
        ("Who is the director of Dune?", "When was [it] released?", "Dune"),
        ("Who are the founders of Orkla?", "Where did [they] meet?", "the founders of Orkla"),
        ("When was Marie Curie born?", "Where did [she] die?", "Marie Curie"),
        ("Where did Marie Curie study?", "Who was [her] husband?", "Marie Curie's"),
        ("Where did Marie Curie study?", "Who taught [her]?", "Marie Curie"),
    ],
)
def test_what_a_pronoun_stands_for(earlier: str, question: str, thing: str) -> None:
    found = resolve_pronouns(question.translate(UNMARKED), [Pair(earlier, None)])
    assert found == MARKED.sub(thing, question)


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


# ---- messages that continue a conversation, as questions that can be understood alone


@pytest.mark.parametrize(
    ("asked", "message", "question"),
    [
        (
            "How many days of annual leave does an employee have?",
            "When does it expire?",
            "When does annual leave expire?",
        ),
        ("How much does the HP-90 cost?", "What is its weight?", "What is HP-90's weight?"),
        ("How much does the HP-90 cost?", "And the HP-35?", "How much does the HP-35 cost?"),
        (
            "What is the daily allowance for Norway?",
            "What about France?",
            "What is the daily allowance for France?",
        ),
        (
            "What is the daily allowance for Norway?",
            "And the hotel limit?",
            "What is the hotel limit for Norway?",
        ),
        (
            "How long is the guarantee of the pump?",
            "And of the motor?",
            "How long is the guarantee of the motor?",
        ),
        (
            "What is the notice period of the contract with Kessel?",
            "When does it begin?",
            "When does the contract with Kessel begin?",
        ),
        ("How long are invoices kept?", "And e-mails?", "How long are e-mails kept?"),
        (
            "Where does the welding course take place?",
            "But what does it cost?",
            "What does welding course cost?",
        ),
        ("Who composed Norma?", "Where was he born?", "Where was Bellini born?"),
        ("Who composed Norma?", "Why?", None),
        ("Who composed Norma?", "How long does it take to learn it?", None),
    ],
)
def test_what_is_meant_is_in_the_question(asked: str, message: str, question: str | None) -> None:
    assert follow_up(message, [Pair(asked, "Bellini")]) == question


def test_messages_continue_each_other() -> None:
    history = [
        Pair("How much does the HP-90 cost?", "5 EUR"),
        Pair("And the HP-35?", "3 EUR"),
    ]
    assert SmallPlanner().continued("What is its weight?", history) == "What is HP-35's weight?"
