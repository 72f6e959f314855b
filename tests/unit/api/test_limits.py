"""Lines of waiting questions: whose turn it is, and who makes room, stepped by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.admission import Lines, WaitingQuestion, retry_after

pytestmark = pytest.mark.anyio


def lines_of(order: str) -> tuple[Lines, list[WaitingQuestion]]:
    """A letter is a waiter of that tenant, the first has waited longest."""
    lines, waiters = Lines(), [WaitingQuestion(tenant, since) for since, tenant in enumerate(order)]
    for waiter in waiters:
        lines.add(waiter)
    return lines, waiters


def order_of(lines: Lines, running: dict[str, int], places: int) -> str:
    """Whose turn it is, each time, where nothing ends meanwhile."""
    served = ""
    for _ in range(places):
        waiter = lines.next(running)
        assert waiter is not None
        running[waiter.tenant] = running.get(waiter.tenant, 0) + 1
        served += waiter.tenant
    return served


async def test_the_tenant_with_the_fewest_running_is_next_and_within_it_the_oldest() -> None:
    lines, waiters = lines_of("aaaab")
    assert lines.next({"a": 3}) is waiters[4]
    assert lines.next({"a": 3}) is waiters[0]
    assert order_of(lines_of("aaaab")[0], {"a": 8}, 5) == "baaaa"
    assert order_of(lines_of("aaabbb")[0], {}, 6) == "ababab"
    assert order_of(lines_of("baab")[0], {}, 4) == "baab"
    assert Lines().next({}) is None


async def test_the_newest_of_the_longest_line_makes_room_for_a_shorter_one() -> None:
    lines, waiters = lines_of("aaa")
    assert lines.displace("a") is None
    assert lines.displace("b") is waiters[2]
    assert list(lines) == waiters[:2]
    lines, _ = lines_of("aab")
    assert lines.displace("b") is None  # they would only change places
    assert lines.displace("c") is not None
    assert Lines().displace("a") is None


async def test_who_leaves_is_out_of_line() -> None:
    lines, waiters = lines_of("ab")
    lines.remove(waiters[0])
    lines.remove(waiters[0])
    assert (len(lines), list(lines)) == (1, [waiters[1]])


@given(st.text(alphabet="abc", max_size=40), st.text(alphabet="abc", max_size=40))
async def test_a_tenant_that_asks_less_than_its_share_is_never_refused_for_a_flood(
    order: str, newcomers: str
) -> None:
    most = 12
    lines, _ = lines_of(order[:most])
    for since, tenant in enumerate(newcomers, 100):
        own = sum(waiter.tenant == tenant for waiter in lines)
        if len(lines) >= most and lines.displace(tenant) is None:
            assert own + 1 >= most // 3
            continue
        lines.add(WaitingQuestion(tenant, since))
        assert len(lines) <= most


def test_who_is_refused_is_told_when_those_before_have_places() -> None:
    assert [retry_after(8, 6, mean) for mean in (None, 0.2, 4.0, 40.0, 4_000.0)] == [
        1,
        1,
        3,
        30,
        60,
    ]
    assert retry_after(0, 0, 5.0) == 1
