"""GEN_FINAL of a comparison by arithmetic (METHODS.md §1.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.prompts.templates import Pair
from service.strategies.comparisons import asked_of_each, comparison_answer
from tests.support.asking import body_of, passage
from tests.support.scripted import SHORT_FORMS, ScriptStep

ADA, ALAN = "When was Ada Lovelace born?", "When was Alan Turing born?"
BORN = [Pair(ADA, "10 December 1815"), Pair(ALAN, "June 23, 1912")]
FILMS = "Which film has the director who was born {}, Red Dawn or The Long Walk (1980 film)?"
DIRECTED = [
    Pair("Who directed Red Dawn?", "John Milius"),
    Pair("Who directed The Long Walk (1980 film)?", "Ida Moe"),
    Pair("When was Ida Moe born?", "1951"),
    Pair("When was John Milius born?", "April 11, 1944"),
]


def each(form: str, answers: dict[str, str]) -> list[Pair]:
    return [Pair(form.format(name), answer) for name, answer in answers.items()]


@pytest.mark.parametrize(
    ("question", "pairs", "answer"),
    [
        ("Who was born first, Ada Lovelace or Alan Turing?", BORN, "Ada Lovelace"),
        ("Who was born first, Alan Turing or Ada Lovelace?", BORN, "Ada Lovelace"),
        ("Who was born first, Ada Lovelace or Alan Turing?", BORN[::-1], "Ada Lovelace"),
        ("Was Ada Lovelace or Alan Turing born later?", BORN, "Alan Turing"),
        ("Who is the younger one of Ada Lovelace and Alan Turing?", BORN, "Alan Turing"),
        ("Is Ada Lovelace older than Alan Turing?", BORN, "yes"),
        ("Was Ada Lovelace born after Alan Turing?", BORN, "no"),
        (FILMS.format("earlier"), DIRECTED, "Red Dawn"),
        (FILMS.format("later"), DIRECTED, "The Long Walk (1980 film)"),
        ("Which came out most recently, Vol. 4 or Sehnsucht?",
         each("When did {} come out?", {"Sehnsucht": "22 August 1997", "Vol. 4": "September 1972"}),
         "Sehnsucht"),
        ("Which battle was fought earlier, Cannae or Mount Gaurus?",
         each("When was {} fought?", {"Cannae": "216 BC", "Mount Gaurus": "342 BC"}),
         "Mount Gaurus"),
        ("Which town has more inhabitants, Vik or Odda?",
         each("How many inhabitants has {}?", {"Vik": "2,700", "Odda": "0.6 million"}), "Odda"),
        ("Which mountain is lower, Kebnekaise or Galdhøpiggen?",
         each("How high is {}?", {"Kebnekaise": "2,097 metres", "Galdhøpiggen": "2,469 metres"}),
         "Kebnekaise"),
        ("Who is older, Bo or Liv?",
         each("How old is {}?", {"Bo": "61 years", "Liv": "16 years"}), "Bo"),
        ("Which film came out earlier, Así en el cielo como en la tierra or Aardvark?",
         each("When did {} come out?",
              {"Así en el cielo como en la tierra": "1995", "Aardvark": "2017"}),
         "Así en el cielo como en la tierra"),
        ("Do Vik and Paris come from one country?",
         each("In which country is {}?", {"Vik": "Norway", "Paris": "France"}), "no"),
        ("Do Vik and Odda share a county?",
         each("In which county is {}?", {"Vik": "Vestland", "Odda": "Vestland"}), "yes"),
        ("Are Vik and Paris in the same country?",
         each("In which country is {}?", {"Vik": "Norway", "Paris": "France"}), "no"),
        ("Do Lee Cole and Sam Dunn have the same nationality?",
         each("What is the nationality of {}?",
              {"Lee Cole": "American", "Sam Dunn": "the United States"}),
         "yes"),
        ("Are Vik and Odda both in the same country?",
         each("Where is {}?", {"Vik": "Vestland, Norway", "Odda": "Norway"}), "yes"),
    ],
)  # fmt: skip
def test_what_the_sub_answers_settle(question: str, pairs: list[Pair], answer: str) -> None:
    assert comparison_answer(question, pairs) == answer


@pytest.mark.parametrize(
    ("question", "pairs"),
    [
        # A value is lacking, or is none.
        ("Who was born first, Ada Lovelace or Alan Turing?", BORN[:1]),
        ("Who was born first, Ada Lovelace or Alan Turing?", []),
        ("Who was born first, Ada Lovelace or Alan Turing?", [BORN[0], Pair(ALAN, None)]),
        ("Who was born first, Ada Lovelace or Alan Turing?", [BORN[0], Pair(ALAN, "London")]),
        ("Who was born first, Ada Lovelace or Alan Turing?", [BORN[0], Pair(ALAN, "፲፱፲፪")]),
        ("Which has more members, Alpha or Beta?",
         each("How many members does {} have?", {"Alpha": "Nan", "Beta": "7"})),
        # Both are equal, as far as they are known.
        ("Who was born first, Ada Lovelace or Alan Turing?", [BORN[0], Pair(ALAN, "1815")]),
        # No comparison, or another thing is asked for.
        ("Where were Ada Lovelace and Alan Turing born?", BORN),
        ("In which year was the older of Ada Lovelace and Alan Turing born?", BORN),
        ("How much older was Ada Lovelace than Alan Turing?", BORN),
        ("Who was not born first, Ada Lovelace or Alan Turing?", BORN),
        ("Who was born first and died last, Ada Lovelace or Alan Turing?", BORN),
        ("Who lived longer, Ada Lovelace or Alan Turing?", BORN),
        ("When was the inventor of the Turing machine born?", [Pair(ALAN, "23 June 1912")]),
        # The units differ.
        ("Which is longer, Ulrikstunnelen or Holmatunnelen?",
         each("How long is {}?", {"Ulrikstunnelen": "7.8 kilometres", "Holmatunnelen": "9 miles"})),
        # A word of a name is no word of the question.
        ("Who directed First Blood and Last Night?",
         each("When did {} come out?", {"First Blood": "1982", "Last Night": "1998"})),
    ],
)  # fmt: skip
def test_what_leaves_doubt_is_left_to_the_model(question: str, pairs: list[Pair]) -> None:
    assert comparison_answer(question, pairs) is None


QUESTION = "Who was born first, Ada Lovelace or Alan Turing?"
HITS = {
    "Ada": [passage("ada", "Ada Lovelace was born on 10 December 1815.", "Ada Lovelace")],
    "Alan": [passage("alan", "Alan Turing was born on 23 June 1912.", "Alan Turing")],
}
SKIPPED = {"skip": ["relevance"]}


@pytest.mark.parametrize("passages", [3, None])
async def test_only_a_small_model_is_not_asked_what_to_compare(passages: int | None) -> None:
    script = [
        ScriptStep("no", ["Task: ending", '""nothing""']),
        ScriptStep("10 December 1815", ["Task: answer", "Ada"]),
        ScriptStep("23 June 1912", ["Task: answer", "Alan"]),
    ]
    if passages is None:
        script += [
            ScriptStep(ADA, ["Task: refine", '""nothing""']),
            ScriptStep("yes", ["Task: ending", "answer-2"]),
            ScriptStep("no", ["Task: ending", "answer-1"]),
            ScriptStep(ALAN, ["Task: refine", "answer-1"]),
            ScriptStep("Alan Turing", "Task: final"),
        ]
    able = replace(SHORT_FORMS, passages=passages)
    asked = {"route": "complex", "conditions": SKIPPED, "capabilities": able}
    body = await body_of(script, HITS, QUESTION, **asked)
    assert body.answer == ("Ada Lovelace" if passages else "Alan Turing")
    assert body.steps[-1].flags == (["computed"] if passages else [])
    assert "ada" in {citation.passage_id for citation in body.citations}


@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        ("Who is older, Ann Lee or Bob Ray?", "When was Ann Lee born?", "When was Bob Ray born?"),
        ("Between Ann Lee and Bob Ray, who died first?",
         "When did Ann Lee die?", "When did Bob Ray die?"),
        ("Who was born later out of Ann Lee and Bob, Count of Ray?",
         "When was Ann Lee born?", "When was Bob, Count of Ray born?"),
        ("Which film was released later, Norma or Salt and the Sea Wolf?",
         "When was Norma released?", "When was Salt and the Sea Wolf released?"),
        ("Between the journals of Rome and 3M, which is older?", None, None),
        ("Between The Ray and 3M, which is older?", "When was The Ray founded?",
         "When was 3M founded?"),
        ("Are the films Norma and Salt of the Sea from the same country?",
         "In which country was Norma made?", "In which country was Salt of the Sea made?"),
        ("Is the nationality of Ann Lee and Émile Ray the same?",
         "What is the nationality of Ann Lee?", "What is the nationality of Émile Ray?"),
        ("Do Ann Lee and Bob Ray share a birthplace?",
         "Where was Ann Lee born?", "Where was Bob Ray born?"),
        # Not told apart, not a comparison, or one by way of another thing.
        ("Do Salt and Sea and Ray and Sun come from one country?", None, None),
        ("Which city is between Rome and Naples?", None, None),
        ("Did Ann Lee and Bob Ray marry?", None, None),
        ("Which film has the director who was born later, Norma or Salt?", None, None),
        ("Which plan is cheaper, Basic or Pro?", None, None),
    ],
)  # fmt: skip
def test_a_comparison_asks_the_same_of_both(
    question: str, first: str | None, second: str | None
) -> None:
    assert asked_of_each(question) == (None if first is None else (first, second))
