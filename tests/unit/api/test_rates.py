"""Token buckets: a minute's quota at once, then evenly; and what the headers say of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.api.access import MOST_BUCKETS, WINDOW_S, Bucket, Rates
from service.api.tenants import Tenant


def test_a_quota_is_there_at_once_and_comes_back_evenly() -> None:
    bucket = Bucket("questions", 3)
    taken = [(bucket.take(0.0), bucket.remaining) for _ in range(4)]
    assert taken == [(True, 2), (True, 1), (True, 0), (False, 0)]
    assert bucket.reset_s == 20.0
    assert [bucket.take(at) for at in (19.9, 20.0, 20.0)] == [False, True, False]


def test_headers_and_refusal_say_when_to_come_back() -> None:
    bucket = Bucket("questions", 2)
    bucket.take(0.0)
    assert bucket.headers == {
        "RateLimit-Policy": '"questions";q=2;w=60',
        "RateLimit": '"questions";r=1;t=30',
    }
    bucket.take(0.0)
    assert not bucket.take(0.0)
    error = bucket.refusal
    assert (error.status, error.retry_after) == (429, 30)
    assert "2 questions a minute" in error.detail


@given(
    quota=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200),
)
def test_never_more_than_the_quota_and_what_came_back(quota: int, gaps: list[float]) -> None:
    bucket = Bucket("requests", quota)
    now, count = 0.0, 0
    for gap in gaps:
        now += gap
        allowed = bucket.take(now)
        count += allowed
        assert 0 <= bucket.remaining <= quota
        assert allowed or 0 < bucket.reset_s <= WINDOW_S / quota + 1e-6
    assert count <= quota + quota / WINDOW_S * now + 1e-6


def test_tenants_have_their_own_and_a_changed_quota_begins_anew() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])

    def tenant(name: str, quota: int | None) -> Tenant:
        return Tenant(name=name, questions_per_minute=quota)

    def allowed(name: str, quota: int | None) -> bool | None:
        taken = rates.take(tenant(name, quota), "questions")
        return taken and taken[1]

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
        return taken is not None and taken[1]

    assert all(ask(number) for number in range(MOST_BUCKETS))
    assert not any(ask(number) for number in range(MOST_BUCKETS))
    now[0] += WINDOW_S
    assert all(ask(number) for number in range(MOST_BUCKETS - 9))
    assert ask(MOST_BUCKETS)  # the nine that were not used are forgotten here
    assert len(rates) == MOST_BUCKETS - 8
    assert not any(ask(number) for number in range(MOST_BUCKETS - 9))
