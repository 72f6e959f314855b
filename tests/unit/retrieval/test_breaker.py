"""The states of a circuit breaker, stepped by hand; times are made up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.retrieval.breaker import Breaker


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(2, 5.0)
    for _ in range(2):
        ticket = breaker.admit(at)
        assert ticket is not None
        breaker.failed(ticket, at)
    assert breaker.state == "open"
    return breaker


def test_failures_in_a_row_open_it_and_a_success_between_does_not() -> None:
    breaker = Breaker(2, 5.0)
    for _ in range(3):
        ticket = breaker.admit(0.0)
        assert ticket is not None
        breaker.failed(ticket, 0.0)
        breaker.succeeded(ticket)
    assert breaker.state == "closed"
    opened()


def test_open_it_admits_nobody_until_its_time_is_over() -> None:
    breaker = opened(at=10.0)
    assert breaker.admit(14.9) is None
    assert breaker.refuses(14.9)
    assert not breaker.refuses(15.0)
    assert breaker.admit(15.0) is not None
    assert breaker.state == "half-open"


def test_half_open_one_probe_goes_and_decides() -> None:
    for good, state in ((True, "closed"), (False, "open")):
        breaker = opened()
        probe = breaker.admit(5.0)
        assert probe is not None
        assert breaker.admit(5.0) is None
        if good:
            breaker.succeeded(probe)
        else:
            breaker.failed(probe, 6.0)
        assert breaker.state == state
    assert breaker.refuses(10.9)
    assert not breaker.refuses(11.0)


def test_a_probe_whose_caller_leaves_is_followed_by_another() -> None:
    breaker = opened()
    probe = breaker.admit(5.0)
    assert probe is not None
    breaker.left(probe)
    assert breaker.state == "open"
    assert breaker.admit(5.0) is not None


def test_calls_from_before_a_change_of_state_tell_nothing() -> None:
    breaker = Breaker(1, 5.0)
    late, ticket = breaker.admit(0.0), breaker.admit(0.0)
    assert late is not None
    assert ticket is not None
    breaker.failed(ticket, 0.0)
    breaker.succeeded(late)
    assert breaker.state == "open"
    probe = breaker.admit(5.0)
    assert probe is not None
    breaker.failed(late, 5.0)
    breaker.left(late)
    assert breaker.state == "half-open"
    breaker.succeeded(probe)
    breaker.failed(late, 6.0)
    assert breaker.state == "closed"


@given(st.lists(st.sampled_from(["succeeded", "failed", "left", "wait", "late"])))
def test_whatever_happens_a_backend_that_is_well_again_is_asked_again(ends: list[str]) -> None:
    breaker, now, late = Breaker(2, 5.0), 0.0, 0
    for end in ends:
        now += 5.0 if end == "wait" else 0.1
        ticket = breaker.admit(now)
        if ticket is None:
            continue
        if end == "failed":
            breaker.failed(ticket, now)
        elif end == "late":
            breaker.failed(late, now)
            breaker.left(ticket)
        elif end == "succeeded":
            breaker.succeeded(ticket)
        else:
            breaker.left(ticket)
        late = ticket
    probe = breaker.admit(now + 5.0)
    assert probe is not None
    breaker.succeeded(probe)
    assert breaker.state == "closed"
