"""Questions and probes while a real Qdrant freezes, dies, is another or loses what it held; then
all is whole again by itself, or by one command."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from service.retrieval.base import SearchRequest
from tests.faults.outage import BRIEFLY_S, FOR_S, NAME, SEARCH_S, SLACK_S, Service, check, outage
from tests.faults.qdrant_faults import (
    HARMLESS,
    NAMES,
    SIDE,
    full_disk,
    proxied_world,
    qdrant_world,
    read_only,
    slow,
)

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("fault", NAMES)
async def test_questions_go_on_and_all_is_whole_again(
    tmp_path: Path, qdrant_script: Path, fault: str
) -> None:
    async with qdrant_world(qdrant_script, tmp_path) as (faults, service):
        breaks, heals = faults.faults(service)[fault]
        told = await outage(service, breaks, heals, FOR_S.get(fault, BRIEFLY_S))
    check(told, SIDE, harmless=fault in HARMLESS)


async def test_a_full_disk_refuses_writes_and_says_why(tmp_path: Path, qdrant_script: Path) -> None:
    async with proxied_world(qdrant_script, tmp_path) as (proxy, service):
        breaks, heals = full_disk(proxy)
        await breaks()
        assert "no space left" in (await service.write() or "")
        assert (await service.ask()).lacking == ()
        await heals()
        assert await service.damage() is None


async def test_a_read_only_server_refuses_writes(tmp_path: Path, qdrant_script: Path) -> None:
    async with proxied_world(qdrant_script, tmp_path) as (proxy, service):
        breaks, heals = read_only(proxy)
        await breaks()
        assert "qdrant" in (await service.write() or "").lower()
        assert (await service.ask()).lacking == ()
        await heals()
        assert await service.damage() is None


async def test_a_slow_server_is_left_out_in_time(tmp_path: Path, qdrant_script: Path) -> None:
    async with proxied_world(qdrant_script, tmp_path) as (proxy, service):
        check(await outage(service, *slow(proxy), BRIEFLY_S), SIDE)


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_what_answers_is_no_qdrant(tmp_path: Path, qdrant_script: Path, status: int) -> None:
    async with proxied_world(qdrant_script, tmp_path) as (proxy, service):

        async def breaks() -> None:
            proxy.status = status

        async def heals() -> None:
            proxy.status = None

        check(await outage(service, breaks, heals, BRIEFLY_S), SIDE)


async def test_several_searches_lose_the_time_once_and_collections_are_listed(
    tmp_path: Path, qdrant_script: Path
) -> None:
    async with qdrant_world(qdrant_script, tmp_path) as (faults, service):
        assert (await service.ask()).lacking == ()
        await faults.freeze()
        asked = await several(service)
        started = time.monotonic()
        async with service.live.http.get("/collections") as response:
            listed = [each["name"] for each in (await response.json())["collections"]]
        listing = time.monotonic() - started
        await faults.thaw()
    assert asked < SEARCH_S + 2 * SLACK_S
    assert NAME in listed
    assert listing < SLACK_S


async def several(service: Service) -> float:
    """Seconds of one question that searches three times."""
    started = time.monotonic()
    async with service.live.app.state.runtime._held_retriever() as held:
        for number in range(3):
            found = await held.search(SearchRequest(f"volcano {number}", 2, NAME))
            assert found.missing == (SIDE,)
    return time.monotonic() - started
