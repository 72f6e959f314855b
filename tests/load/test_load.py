"""Seconds of what `python -m tests.load` measures: nothing is lost, whatever the times are."""

from __future__ import annotations

import pytest

from tests.load.__main__ import CAPACITY, crowd, flood

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def test_what_is_too_much_is_refused_with_a_time_to_come_back() -> None:
    _, sent = await flood(3.0)
    assert {each.status for each in sent} == {200, 503}
    assert all(each.retry_after for each in sent if each.status == 503)
    assert sum(each.status == 200 for each in sent) > CAPACITY


async def test_a_crowd_of_streams_is_answered_and_health_answers_meanwhile() -> None:
    answered, waits, _ = await crowd(100)
    assert answered == 100
    assert waits
