"""The states of a circuit breaker, stepped by hand; times are made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.retrieval.search.guard import Breaker

LOST_S = 3.0


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(2, LOST_S, 5.0)
    for _ in range(2):
        ticket = breaker.admit(at)
        assert ticket is not None
        breaker.failed(ticket, at, at)
    assert breaker.state == "open"
    return breaker


def test_failures_in_a_row_open_it_and_a_success_between_does_not() -> None:
    breaker = Breaker(2, LOST_S, 5.0)
    for _ in range(3):
        ticket = breaker.admit(0.0)
        assert ticket is not None
        breaker.failed(ticket, 0.0, 0.0)
        breaker.succeeded(ticket)
    assert breaker.state == "closed"
    opened()


def lose(breaker: Breaker, began: float, until: float, *, left: bool = False) -> None:
    ticket = breaker.admit(began)
    assert ticket is not None
    (breaker.left if left else breaker.failed)(ticket, began, until)


@pytest.mark.parametrize("left", [False, True])
def test_lost_time_opens_it_before_the_count_does(left: bool) -> None:
    breaker = Breaker(5, LOST_S, 5.0)
    lose(breaker, 0.0, 2.0, left=left)
    lose(breaker, 100.0, 100.9, left=left)  # nobody waited in between
    assert breaker.state == "closed"
    lose(breaker, 200.0, 200.2, left=left)
    assert breaker.state == "open"
    assert breaker.refuses(205.1)
    assert not breaker.refuses(205.2)


def test_those_who_wait_at_once_lose_the_time_once() -> None:
    breaker = Breaker(100, LOST_S, 5.0)
    tickets = [breaker.admit(0.0) for _ in range(50)]
    for number, ticket in enumerate(tickets):
        assert ticket is not None
        breaker.left(ticket, number / 100, 2.0 + number / 100)
    assert breaker.state == "closed"
    lose(breaker, 2.0, 3.1, left=True)
    assert breaker.state == "open"


def test_calls_from_before_a_change_of_state_tell_nothing() -> None:
    breaker = Breaker(1, LOST_S, 5.0)
    late, ticket = breaker.admit(0.0), breaker.admit(0.0)
    assert late is not None
    assert ticket is not None
    breaker.failed(ticket, 0.0, 0.0)
    breaker.succeeded(late)
    assert breaker.state == "open"
    probe = breaker.admit(5.0)
    assert probe is not None
    breaker.failed(late, 5.0, 5.0)
    breaker.left(late, 5.0, 5.0)
    assert breaker.state == "half-open"
    breaker.succeeded(probe)
    breaker.failed(late, 6.0, 6.0)
    assert breaker.state == "closed"


@given(st.lists(st.sampled_from(["succeeded", "failed", "left", "wait", "late"])))
def test_whatever_happens_a_backend_that_is_well_again_is_asked_again(ends: list[str]) -> None:
    breaker, now, late = Breaker(2, LOST_S, 5.0), 0.0, 0
    for end in ends:
        now += 5.0 if end == "wait" else 0.1
        ticket = breaker.admit(now)
        if ticket is None:
            continue
        if end == "failed":
            breaker.failed(ticket, now, now)
        elif end == "late":
            breaker.failed(late, now, now)
            breaker.left(ticket, 5.0, 5.0)
        elif end == "succeeded":
            breaker.succeeded(ticket)
        else:
            breaker.left(ticket, 5.0, 5.0)
        late = ticket
    probe = breaker.admit(now + 5.0)
    assert probe is not None
    breaker.succeeded(probe)
    assert breaker.state == "closed"
