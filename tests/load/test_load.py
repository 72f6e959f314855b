"""Seconds of what `python -m tests.load` measures: nothing is lost, whatever the times are."""

from __future__ import annotations

from pathlib import Path

from tests.load.__main__ import CAPACITY, beside_engine, crowd, drained, flood
from tests.load.gateways import FAULTS, two_gateways


async def test_questions_by_the_gateway_and_calls_of_its_engine_are_all_answered() -> None:
    sent = await beside_engine(2.0)
    assert {each.status for each in sent} == {200}
    for side in ("gateway", "engine"):
        took = [each.seconds for each in sent if each.tenant == side]
        assert len(took) == CAPACITY
        assert min(took) > 0.4  # the engine's words, and neither answered without it


async def test_what_is_too_much_is_refused_with_a_time_to_come_back() -> None:
    _, sent = await flood(3.0)
    assert {each.status for each in sent} == {200, 503}
    assert all(each.retry_after for each in sent if each.status == 503)
    assert sum(each.status == 200 for each in sent) > CAPACITY


async def test_a_crowd_of_streams_is_answered_and_health_answers_meanwhile() -> None:
    held = await crowd(100)
    assert held.answered == 100
    assert held.waits


async def test_a_process_under_load_ends_what_it_has_admitted_and_refuses_the_rest() -> None:
    sent, code = await drained(4.0)
    assert {each.status for each in sent} == {200, 503}
    assert all(each.retry_after for each in sent if each.status == 503)
    assert code == 0


async def test_no_question_is_lost_with_a_gateway_or_a_store(
    tmp_path: Path, elasticsearch_url: str, qdrant_script: Path
) -> None:
    async with two_gateways(elasticsearch_url, qdrant_script, tmp_path) as pair:
        faults = [fault for fault in FAULTS if fault != "rolling restart"]  # BOTH holds it
        tallies = {fault: await pair.under(fault, 1.0) for fault in faults}
    assert pair.exits == [0, 0]
    for fault, tally in tallies.items():
        assert not [told for told in tally.questions if not told.answered], fault
        assert tally.asked >= 4
    assert tallies["a gateway killed"].retried > 0
    assert tallies["a store killed"].lacking > 0
    assert tallies["a store killed"].retried == 0
