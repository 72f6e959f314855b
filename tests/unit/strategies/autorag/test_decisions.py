"""Auto-RAG's policy stepped by hand (METHODS.md §2.2, pseudocode and failure table)."""

from __future__ import annotations

import pytest

from service.strategies.autorag_dialogue import (
    AT_LINES,
    Action,
    Policy,
    is_looping,
)


def asks(query: str) -> str:
    return f"Intermediate Answer_1: Something is missing.\n\nRefined Query: {query}"


ANSWERS = "Intermediate Answer_1: Found.\n\nFinal Answer: X"


def test_both_phases_and_the_direct_answer() -> None:
    policy = Policy("Q?", max_retrievals=2, max_parametric=2)
    steps = [
        (policy.max_tokens, policy.decide(asks(query)), policy.document_number) for query in "abcde"
    ]
    assert steps == [
        (200, Action("retrieve", "a"), 1),
        (200, Action("retrieve", "b"), 2),
        (150, Action("imagine", "c"), 3),
        (150, Action("imagine", "d"), 4),
        (150, Action("give_up", stopped_by="max_steps"), 4),
    ]


def test_the_answer_is_found_at_lines_5_10_and_15() -> None:
    for turns_before in range(5):
        policy = Policy("Q?", max_retrievals=2, max_parametric=3)
        for _ in range(turns_before):
            policy.decide(asks("a"))
        assert policy.decide(ANSWERS) == Action("conclude", "X")


def test_a_turn_without_marker_searches_the_question_then_the_last_query() -> None:
    policy = Policy("Q?", max_retrievals=9, max_parametric=0)
    assert policy.decide("Hm.") == Action("retrieve", "Q?", repaired=True)
    assert policy.decide(asks("a")) == Action("retrieve", "a")
    assert policy.decide("Hm.") == Action("retrieve", "a", repaired=True)
    assert policy.document_number == 3
    assert policy.decide("Hm again.") == Action("give_up")


def test_a_turn_without_marker_after_the_last_retrieval_gives_up() -> None:
    policy = Policy("Q?", max_retrievals=1, max_parametric=5)
    policy.decide(asks("a"))
    assert policy.decide("Hm.") == Action("give_up", stopped_by="max_steps")


def test_only_a_refined_query_is_imagined() -> None:
    policy = Policy("Q?", max_retrievals=1, max_parametric=5)
    policy.decide(asks("a"))
    assert policy.decide("Initial Query: b") == Action("give_up", stopped_by="max_steps")


def test_a_query_outweighs_an_answer_but_not_beyond_the_limit() -> None:
    both = "Final Answer: X\nRefined Query: b"
    policy = Policy("Q?", max_retrievals=1, max_parametric=0)
    assert policy.decide(both) == Action("retrieve", "b")
    assert policy.decide("Refined Query: b\nFinal Answer: X") == Action("conclude", "X")


CUT = "Intermediate Answer_1: It is Bellini.\n\nRefined Query: birthplace of the composer Vin"


def test_a_query_that_was_cut_is_none() -> None:
    policy = Policy("Q?", 9, 9, AT_LINES)
    assert policy.decide(asks("a")) == Action("retrieve", "a")
    assert policy.decide(CUT, cut=True) == Action("retrieve", "a", repaired=True)
    assert policy.decide(asks("Where was Bellini born?"), cut=True) == Action(
        "retrieve", "Where was Bellini born?"
    )
    assert policy.decide(asks("b\nIt will tell us the"), cut=True) == Action("retrieve", "b")
    assert not policy.shortened


def test_a_cut_query_is_asked_for_again_once() -> None:
    policy = Policy("Q?", 9, 9, AT_LINES, reminds=True)
    assert policy.decide(CUT, cut=True) == Action("remind")
    assert policy.decide(CUT, cut=True) == Action("retrieve", "Q?", repaired=True)


def test_no_document_is_imagined_for_a_cut_query() -> None:
    policy = Policy("Q?", 1, 9, AT_LINES)
    policy.decide(asks("a"))
    assert policy.decide(CUT, cut=True) == Action("give_up", stopped_by="max_steps")
    assert policy.decide(f"Final Answer: X\n{CUT}", cut=True) == Action("conclude", "X")


def test_published_models_go_on_with_a_cut_query_and_it_is_told() -> None:
    policy = Policy("Q?", 1, 9)
    for kind in ("retrieve", "imagine"):
        assert policy.decide(CUT, cut=True)[:2] == (kind, "birthplace of the composer Vin")
        assert policy.shortened
    policy.decide(CUT)
    assert not policy.shortened


def test_a_loop_gives_up_at_once() -> None:
    policy = Policy("Q?", max_retrievals=5, max_parametric=5)
    assert policy.decide("Initial Query: 1.1.1.1.1.1") == Action("give_up")


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1.1.1",
        "the the the the the the",
        "New York, New York, New York, New York",
        "He was born in Rome. He was born in Rome. He was born in Rome.",
        "so " * 40,
        "哈哈哈哈哈哈哈哈哈",
    ],
)
def test_loops(text: str) -> None:
    assert is_looping(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "New York, New York",
        "He was born in Rome. She was born in Rome. They were born in Rome.",
        "It has 100000000000 inhabitants.",
        "Intermediate Answer_1: It names her.\n\nRefined Query: her birthplace",
        "----------",
    ],
)
def test_no_loops(text: str) -> None:
    assert not is_looping(text)


def test_an_untuned_model_is_reminded_of_the_form_once_before_it_misses() -> None:
    policy = Policy("Q?", max_retrievals=9, max_parametric=0, form=AT_LINES, reminds=True)
    assert policy.decide("Norma is an opera.") == Action("remind")
    assert (policy.retrieved, policy.misses) == (0, 0)
    assert policy.decide("Norma is an opera.") == Action("retrieve", "Q?", repaired=True)
    assert policy.decide("Norma is an opera.") == Action("give_up")


def test_it_is_reminded_after_the_retrievals_too() -> None:
    policy = Policy("Q?", max_retrievals=1, max_parametric=0, form=AT_LINES, reminds=True)
    assert policy.decide("Query: a") == Action("retrieve", "a")
    assert policy.decide("It is Bellini.") == Action("remind")
    assert policy.decide("Final Answer: Bellini") == Action("conclude", "Bellini")


def test_a_loop_is_not_asked_for_again() -> None:
    policy = Policy("Q?", max_retrievals=1, max_parametric=0, reminds=True)
    assert policy.decide("so " * 20) == Action("give_up")
