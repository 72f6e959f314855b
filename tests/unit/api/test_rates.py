"""Token buckets: a minute's quota at once, then evenly; and what the headers say of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.api.access import MOST_BUCKETS, WINDOW_S, Rates, Taken
from service.api.tenants import Tenant


class Clock:
    """Rates of one tenant with a quota of questions, and the time."""

    def __init__(self, quota: int) -> None:
        self.now = 0.0
        self._rates = Rates(lambda: self.now)
        self._tenant = Tenant(name="a", questions_per_minute=quota)

    def take(self, at: float) -> Taken:
        self.now = at
        taken = self._rates.take(self._tenant, "questions")
        assert taken is not None
        return taken


def test_a_quota_is_there_at_once_and_comes_back_evenly() -> None:
    clock = Clock(3)
    taken = [clock.take(0.0) for _ in range(4)]
    assert [(each.allowed, each.remaining) for each in taken] == [
        (True, 2), (True, 1), (True, 0), (False, 0),
    ]  # fmt: skip
    assert round(taken[-1].reset_s, 6) == 20.0
    assert [clock.take(at).allowed for at in (19.9, 20.0, 20.0)] == [False, True, False]


def test_headers_and_refusal_say_when_to_come_back() -> None:
    clock = Clock(2)
    assert clock.take(0.0).headers == {
        "RateLimit-Policy": '"questions";q=2;w=60',
        "RateLimit": '"questions";r=1;t=30',
    }
    clock.take(0.0)
    error = clock.take(0.0).refusal
    assert (error.status, error.retry_after) == (429, 30)
    assert "2 questions a minute" in error.detail


@given(
    quota=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200),
)
def test_never_more_than_the_quota_and_what_came_back(quota: int, gaps: list[float]) -> None:
    clock, count = Clock(quota), 0
    for gap in gaps:
        taken = clock.take(clock.now + gap)
        count += taken.allowed
        assert 0 <= taken.remaining <= quota
        assert taken.allowed or 0 < taken.reset_s <= WINDOW_S / quota + 1e-6
    assert count <= quota + quota / WINDOW_S * clock.now + 1e-6


def test_tenants_have_their_own_and_a_changed_quota_begins_anew() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])

    def tenant(name: str, quota: int | None) -> Tenant:
        return Tenant(name=name, questions_per_minute=quota)

    def allowed(name: str, quota: int | None) -> bool | None:
        taken = rates.take(tenant(name, quota), "questions")
        return taken and taken.allowed

    assert [allowed("a", 1), allowed("a", 1), allowed("b", 1)] == [True, False, True]
    assert rates.take(tenant("a", 1), "requests") is None
    assert allowed("c", None) is None
    assert [allowed("a", 2), allowed("a", 2), allowed("a", 2)] == [True, True, False]


def test_tenants_whose_quotas_are_whole_again_are_forgotten() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])

    def ask(number: int) -> bool:
        tenant = Tenant(name=f"t{number}", questions_per_minute=1)
        taken = rates.take(tenant, "questions")
        return taken is not None and taken.allowed

    assert all(ask(number) for number in range(MOST_BUCKETS))
    assert not any(ask(number) for number in range(MOST_BUCKETS))
    now[0] += WINDOW_S
    assert all(ask(number) for number in range(MOST_BUCKETS - 9))
    assert ask(MOST_BUCKETS)  # the nine that were not used are forgotten here
    assert len(rates) == MOST_BUCKETS - 8
    assert not any(ask(number) for number in range(MOST_BUCKETS - 9))
