"""REFINE of a bridge by substitution (METHODS.md §1.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.prompts.templates import Pair
from service.strategies.rules import bridge_answer, last_clause, substitute_answers
from tests.support.asking import body_of, passage
from tests.support.scripted import SHORT_FORMS, ScriptStep

LAND = [Pair("Who directed Land of Peace?", "Kamal El Sheikh")]
DOG = [Pair("Who directed A Dog's Purpose?", "Lasse Hallström")]
NORMA = [Pair("Who composed the opera Norma?", "Vincenzo Bellini")]
FATHER = [Pair("Who was Ylenia Carrisi's father?", "Albano Carrisi")]


@pytest.mark.parametrize(
    ("question", "pairs", "left"),
    [
        (
            "Of which nationality is the person who directed Land of Peace?",
            LAND,
            "Of which nationality is Kamal El Sheikh?",
        ),
        (
            "Where was the death of Land of Peace's director?",
            LAND,
            "Where was the death of Kamal El Sheikh?",
        ),
        (
            "When did the director of the film Land of Peace die?",
            LAND,
            "When did Kamal El Sheikh die?",
        ),
        (
            "Where did the director of film Land of Peace (1957 film) study?",
            LAND,
            "Where did Kamal El Sheikh study?",
        ),
        (
            "Who is the spouse of A Dog's Purpose's director?",
            DOG,
            "Who is the spouse of Lasse Hallström?",
        ),
        (
            "What is the director of the film A Dog's Purpose's birth date?",
            DOG,
            "What is Lasse Hallström's birth date?",
        ),
        (
            "In which city was the composer of the opera Norma born?",
            NORMA,
            "In which city was Vincenzo Bellini born?",
        ),
        (
            "What is the place of birth of Norma's composer?",
            NORMA,
            "What is the place of birth of Vincenzo Bellini?",
        ),
        ("When was Ylenia Carrisi's father born?", FATHER, "When was Albano Carrisi born?"),
        (
            "What was the film Do You Believe?'s director known for?",
            [Pair("Who directed Do You Believe?", "Jon Gunn")],
            "What was Jon Gunn known for?",
        ),
        (
            "When did the wife of the director of Land of Peace die?",
            [*LAND, Pair("Who is the wife of Kamal El Sheikh?", "Mona Zaki")],
            "When did Mona Zaki die?",
        ),
        (
            "In which place was the actor who starred in the film Help! born?",
            [Pair("Who starred in Help!?", "Ida Moe")],
            "In which place was Ida Moe born?",
        ),
        (
            "What is the date of death of the composer of Help!?",
            [Pair("Who composed Help!?", "Ida Moe")],
            "What is the date of death of Ida Moe?",
        ),
        (
            "Which country is the company that published Vik from?",
            [Pair("Which company published Vik?", "Orkla")],
            "Which country is Orkla from?",
        ),
    ],
)
def test_what_was_found_takes_the_place_of_its_description(
    question: str, pairs: list[Pair], left: str
) -> None:
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


@pytest.mark.anyio
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


@pytest.mark.anyio
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
    ("question", "asked", "left"),
    [
        (
            "What is the name of the airport in the city where WILM is licensed to broadcast?",
            "In which city is WILM licensed to broadcast?",
            "What is the name of the airport in Narvik?",
        ),
        (
            "What currency predated the Euro in the country Signmark is from?",
            "Which country is Signmark from?",
            "What currency predated the Euro in Narvik?",
        ),
        (
            "Who was first president of the association which published the Journal of Physics?",
            "Which association published the Journal of Physics?",
            "Who was first president of Narvik?",
        ),
        (
            "In what county is the city where Harris W. Fawell was born?",
            "In which city was Harris W. Fawell born?",
            "In what county is Narvik?",
        ),
        (
            "Who lives in the birthplace of the person who made The Oddventures of Mr. Cool?",
            "Who made The Oddventures of Mr. Cool?",
            None,
        ),
        (
            "What was the name of the storm that hit Jacksonville?",
            "Which storm hit Jacksonville?",
            None,
        ),
    ],
)
def test_the_last_clause_is_a_question_of_its_own(
    question: str, asked: str, left: str | None
) -> None:
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


@pytest.mark.anyio
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
