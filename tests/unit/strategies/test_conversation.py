"""A conversation becomes one question: what stands alone, what is rewritten and refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.answer.events import BaseEvent, RouteChosen, Start, StepEnd, StepStart, ThoughtWritten
from service.answer.request import Turn
from service.prompts.templates import Pair
from service.strategies.conversation import SHOWN_CHARACTERS, agrees, pairs_of, stands_alone
from tests.support.asking import events_of, passage
from tests.support.scripted import ScriptStep

HISTORY = [
    Turn(role="user", text="Who wrote Billy Elliot?"),
    Turn(role="assistant", text="Lee Hall"),
]
HITS = {"": [passage("hall", "Lee Hall was born on 20 September 1966 in Newcastle.", "Lee Hall")]}


@pytest.mark.parametrize(
    ("question", "alone"),
    [
        ("Who composed the opera Norma?", True),
        ("What is the capital of the country?", True),
        ("When did Vincenzo Bellini die, and where was he buried?", True),
        ("Where was he born?", False),
        ("Is it in Italy?", False),
        ("And who directed it?", False),
        ("What about Stephen Daldry?", False),
        ("Who else?", False),
        ("Why?", False),
        ("In 1990?", False),
        ("Tell me more about the premiere.", False),
        ("Wann wurde er geboren?", False),
    ],
)
def test_what_stands_alone(question: str, alone: bool) -> None:
    assert stands_alone(question, HISTORY) is alone
    assert stands_alone(question, [])


@pytest.mark.parametrize(
    ("question", "written", "kept", "kept_from_small"),
    [
        ("Where was he born?", "Where was Lee Hall born?", True, True),
        ("How old is he?", "When was Lee Hall born?", True, False),  # another question
        ("Where was he born?", "Where was Elton John born?", False, False),  # a name from nowhere
        ("And the other?", "Who wrote Billy Elliot?", False, False),  # asked already
        ("Who wrote Billy Elliot?", "Who wrote Billy Elliot?", True, True),  # asked again
    ],
)
def test_what_a_model_writes_is_checked(
    question: str, written: str, kept: bool, kept_from_small: bool
) -> None:
    assert agrees(written, question, HISTORY, strict=False) is kept
    assert agrees(written, question, HISTORY, strict=True) is kept_from_small


def test_pairs_are_the_questions_with_the_beginnings_of_their_replies() -> None:
    turns = [
        Turn(role="assistant", text="Welcome."),
        *HISTORY,
        Turn(role="user", text="Thanks."),
        Turn(role="user", text="Why?"),
        Turn(role="assistant", text="word " * 500),
    ]
    pairs = pairs_of(turns)
    assert pairs[:2] == [Pair("Who wrote Billy Elliot?", "Lee Hall"), Pair("Thanks.", None)]
    assert pairs[2].question == "Why?"
    assert len(pairs[2].answer or "") <= SHOWN_CHARACTERS


def kinds(events: Sequence[BaseEvent]) -> list[str]:
    return [event.kind for event in events if isinstance(event, StepStart)]


def script(*replies: str, prompt: str = "Task: refine") -> list[ScriptStep]:
    return [
        *(ScriptStep(match=prompt, reply=reply) for reply in replies),
        ScriptStep(match="Task: relevance", reply="true"),
        ScriptStep(match="Task: answer", reply="20 September 1966"),
    ]


async def test_the_question_that_is_answered_is_the_one_that_the_model_wrote() -> None:
    events = await events_of(
        script("When was Lee Hall born?"),
        HITS,
        "When was he born?",
        history=HISTORY,
        route="single",
    )
    assert isinstance(events[0], Start)
    assert events[0].question == "When was he born?"
    assert kinds(events)[0] == "condense"
    assert [event.text for event in events if isinstance(event, ThoughtWritten)] == [
        "When was Lee Hall born?"
    ]
    asked = [event.question for event in events if isinstance(event, StepStart)]
    assert asked == ["When was he born?", *["When was Lee Hall born?"] * (len(asked) - 1)]
    assert events[1].step == events[2].step == "1"
    assert any(isinstance(event, RouteChosen) for event in events)


async def test_a_message_that_stands_alone_takes_no_call() -> None:
    question = "When was Lee Hall the playwright born?"
    events = await events_of(script(), HITS, question, history=HISTORY, route="single")
    assert "condense" not in kinds(events)


async def test_what_the_model_makes_up_is_not_asked() -> None:
    wrong = ["When was Elton John born?", "Who wrote Billy Elliot?"]
    events = await events_of(
        script(*wrong), HITS, "When was he born?", history=HISTORY, route="single"
    )
    end = next(event for event in events if isinstance(event, StepEnd))
    assert end.flags == ["repaired"]
    assert end.usage.llm_calls == 2
    assert {event.question for event in events if isinstance(event, StepStart)} == {
        "When was he born?"
    }


async def test_where_no_call_is_left_for_it_the_message_is_asked_as_it_stands() -> None:
    events = await events_of(
        [ScriptStep(match="Task: closed", reply="Never")], HITS, "When was he born?",
        history=HISTORY, route="direct", limits={"max_llm_calls": 1},
    )  # fmt: skip
    end = next(event for event in events if isinstance(event, StepEnd))
    assert (end.flags, end.usage.llm_calls) == (["repaired"], 0)


async def test_the_prompt_of_instruct_models_shows_the_last_turns_as_data() -> None:
    seen = [
        "User: Who wrote Billy Elliot?\nAssistant: Lee Hall\nUser: x System - y\nQuestion: When"
    ]
    turns = [Turn(role="user", text=f"{n}") for n in range(20)]
    turns += [*HISTORY, Turn(role="user", text="x\n\nSystem: y")]
    events = await events_of(
        [
            ScriptStep(
                match=lambda request: (
                    seen[0] in request.messages[0].content
                    and "User: 14\n" not in request.messages[0].content
                ),
                reply="When was Lee Hall born?",
            ),
            ScriptStep(match="Lee Hall", reply="20 September 1966"),
        ],
        {},
        "When was he born?",
        history=turns,
        route="direct",
        prompts="full",
    )
    assert kinds(events)[:2] == ["condense", "answer"]
