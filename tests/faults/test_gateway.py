"""A gateway whose disk fills, whose clock jumps, whose names are gone, or which is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import need
from tests.faults.local import NAMES, kill_and_restart, local_world
from tests.faults.names import embedding_world, lose_issuer, lose_workers
from tests.faults.outage import BRIEFLY_S, check, outage

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("fault", NAMES)
async def test_questions_lack_nothing_and_the_data_is_whole(tmp_path: Path, fault: str) -> None:
    async with local_world(tmp_path) as (machine, service):
        told = await outage(service, *machine.faults()[fault], BRIEFLY_S)
        assert ("MB free" in (machine.refusal or "")) == (fault == "disk full")
    check(told, "", harmless=True, fault=fault)


async def test_workers_are_used_whose_names_are_gone() -> None:
    row = await lose_workers(1.0)
    assert row.failed == []
    assert row.answered == len(row.outcomes) >= 4


async def test_bm25_answers_while_the_name_of_the_embedding_server_is_gone(tmp_path: Path) -> None:
    async with embedding_world(tmp_path) as (names, proxy, service):
        told = await outage(service, *names.lost(proxy), BRIEFLY_S)
    assert {asked.lacking for asked in told.questions} == {("dense",)}
    assert told.back_s is not None
    assert told.problem is None


@pytest.mark.parametrize("known", [True, False])
async def test_an_issuer_whose_name_is_gone_is_needed_only_for_its_first_keys(known: bool) -> None:
    need("jwt")
    met, back = await lose_issuer(4, known=known)
    assert (met.answered, met.refused, met.lost) == ((4, 0, 0) if known else (0, 4, 0))
    assert back


async def test_questions_are_answered_by_the_gateway_that_is_started_again(tmp_path: Path) -> None:
    told = await kill_and_restart(tmp_path / "data")
    assert all(each.answered for each in told)
    assert any(each.tries for each in told)
