"""The workers that lost a question's calls."""

from __future__ import annotations

from service.engines.pool.choice import Losses


def test_workers_are_remembered_by_question() -> None:
    losses = Losses()
    losses.add("q1", "a")
    losses.add("q1", "b")
    losses.add("q2", "a")
    assert losses.of("q1") == {"a", "b"}
    assert losses.of("q2") == {"a"}
    assert losses.of("q3") == frozenset()


def test_a_call_without_a_question_is_not() -> None:
    losses = Losses()
    losses.add("", "a")
    assert losses.of("") == frozenset()


def test_the_question_that_lost_nothing_for_longest_is_forgotten() -> None:
    losses = Losses(most=2)
    for question, worker in (("q1", "a"), ("q2", "a"), ("q1", "b"), ("q3", "a")):
        losses.add(question, worker)
    assert losses.of("q2") == frozenset()
    assert losses.of("q1") == {"a", "b"}
