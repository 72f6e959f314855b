"""Messages that continue a conversation, as questions that can be understood alone."""

import pytest

from service.prompts.templates import Pair
from service.strategies.planner import RulePlanner
from service.strategies.rules import follow_up


@pytest.mark.parametrize(
    ("asked", "answer", "message", "question"),
    [
        (
            "How many days of annual leave does an employee have?",
            "29 days",
            "When does it expire?",
            "When does annual leave expire?",
        ),
        (
            "How much does the HP-90 cost?",
            "5 EUR",
            "What is its weight?",
            "What is HP-90's weight?",
        ),
        (
            "How much does the HP-90 cost?",
            "5 EUR",
            "And the HP-35?",
            "How much does the HP-35 cost?",
        ),
        (
            "What is the daily allowance for Norway?",
            "74 EUR",
            "What about France?",
            "What is the daily allowance for France?",
        ),
        (
            "What is the daily allowance for Norway?",
            "74 EUR",
            "And the hotel limit?",
            "What is the hotel limit for Norway?",
        ),
        (
            "How long is the guarantee of the pump?",
            "two years",
            "And of the motor?",
            "How long is the guarantee of the motor?",
        ),
        (
            "What is the notice period of the contract with Kessel?",
            "six months",
            "When does it begin?",
            "When does the contract with Kessel begin?",
        ),
        ("How long are invoices kept?", "10 years", "And e-mails?", "How long are e-mails kept?"),
        (
            "Where does the welding course take place?",
            "Oslo",
            "But what does it cost?",
            "What does welding course cost?",
        ),
        ("Who composed Norma?", "Bellini", "Where was he born?", "Where was Bellini born?"),
        ("Who composed Norma?", "Bellini", "Why?", None),
        ("Who composed Norma?", "Bellini", "How long does it take to learn it?", None),
    ],
)
def test_what_is_meant_is_in_the_question(
    asked: str, answer: str, message: str, question: str | None
) -> None:
    assert follow_up(message, [Pair(asked, answer)]) == question


def test_the_first_message_continues_nothing() -> None:
    assert follow_up("And the HP-35?", []) is None


def test_messages_continue_each_other() -> None:
    history = [
        Pair("How much does the HP-90 cost?", "5 EUR"),
        Pair("And the HP-35?", "3 EUR"),
    ]
    assert RulePlanner().continued("What is its weight?", history) == "What is HP-35's weight?"
