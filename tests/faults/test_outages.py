"""Questions and probes while a store, a worker or a name is out, or the machine of a gateway fails;
then all is whole again by itself, or by one command."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from service.retrieval.base import SearchRequest
from service.retrieval.search.hybrid import SnapshotRetriever
from tests.conftest import need
from tests.faults import stores
from tests.faults.conftest import Note
from tests.faults.local import NAMES, STREAMS, kill_and_restart, local_world, terminate
from tests.faults.names import embedding_world, lose_issuer, lose_workers
from tests.faults.outage import (
    BRIEFLY_S,
    FOR_S,
    NAME,
    SEARCH_S,
    SLACK_S,
    Counts,
    Service,
    check,
    outage,
)
from tests.faults.workers import FAULTS, QUESTIONS, Row, replace_all, survive


async def test_elasticsearch(tmp_path: Path, elasticsearch_script: Path, matrix: Note) -> None:
    """One fault after the other, on one server."""
    async with stores.elastic_world(elasticsearch_script, tmp_path) as (faults, service):
        for fault in stores.ELASTIC:
            told = await outage(service, *faults[fault], FOR_S.get(fault, BRIEFLY_S))
            matrix("Elasticsearch", fault, told.counts)
            check(told, "bm25", harmless=fault in stores.HARMLESS, fault=fault)


@pytest.mark.parametrize("fault", stores.QDRANT)
async def test_qdrant(tmp_path: Path, qdrant_script: Path, fault: str, matrix: Note) -> None:
    async with stores.qdrant_world(qdrant_script, tmp_path) as (_, faults, service):
        told = await outage(service, *faults[fault], FOR_S.get(fault, BRIEFLY_S))
    matrix("Qdrant", fault, told.counts)
    check(told, "dense", harmless=fault in stores.HARMLESS)


@pytest.mark.parametrize("fault", stores.PROXIED)
async def test_qdrant_behind_a_proxy(
    tmp_path: Path, qdrant_script: Path, fault: str, matrix: Note
) -> None:
    async with stores.proxied_world(qdrant_script, tmp_path) as (faults, service):
        breaks, heals = faults[fault]
        refusals = list[str]()

        async def write_and_heal() -> None:
            if fault in stores.REFUSALS:
                refusals.append(await service.write() or "")
            await heals()

        told = await outage(service, breaks, write_and_heal, BRIEFLY_S)
    matrix("Qdrant", fault, told.counts)
    check(told, "dense", harmless=fault in stores.HARMLESS)
    assert all(stores.REFUSALS[fault] in each.lower() for each in refusals), refusals


async def test_several_searches_lose_the_time_once_and_collections_are_listed(
    tmp_path: Path, qdrant_script: Path
) -> None:
    async with stores.qdrant_world(qdrant_script, tmp_path) as (server, _, service):
        assert (await service.ask()).lacking == ()
        await server.freeze()
        asked = await several(service)
        started = time.monotonic()
        async with service.live.http.get("/collections") as response:
            listed = [each["name"] for each in (await response.json())["collections"]]
        listing = time.monotonic() - started
        await server.thaw()
    assert asked < SEARCH_S + 2 * SLACK_S
    assert NAME in listed
    assert listing < SLACK_S


async def several(service: Service) -> float:
    """Seconds of one question that searches three times."""
    started = time.monotonic()
    async with SnapshotRetriever(service.live.app.state.runtime.retrieval.retriever) as held:
        for number in range(3):
            found = await held.search(SearchRequest(f"volcano {number}", 2, NAME))
            assert found.missing == ("dense",)
    return time.monotonic() - started


def of_workers(row: Row, least: int) -> Counts:
    """That no question failed, and each answer is the text of its tokens."""
    assert row.failed == []
    assert row.answered == len(row.outcomes) >= least
    assert all(outcome.whole for outcome in row.outcomes)
    return Counts(row.answered, lost=row.hung)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_worker_of_three(fault: str, matrix: Note) -> None:
    row = asyncio.run(survive(FAULTS[fault]))
    matrix("worker", fault, of_workers(row, QUESTIONS))


@pytest.mark.allow_hosts([f"127.0.0.{number}" for number in range(1, 8)])
def test_all_workers_are_replaced_under_load(matrix: Note) -> None:
    matrix("worker", "all replaced", of_workers(replace_all(), QUESTIONS + 1))


async def test_workers_are_used_whose_names_are_gone(matrix: Note) -> None:
    matrix("worker", "DNS gone", of_workers(await lose_workers(5.0), 4))


@pytest.mark.parametrize("fault", NAMES)
async def test_the_machine_of_a_gateway(tmp_path: Path, fault: str, matrix: Note) -> None:
    async with local_world(tmp_path) as (machine, service):
        told = await outage(service, *machine.faults()[fault], BRIEFLY_S)
        assert ("MB free" in (machine.refusal or "")) == (fault == "disk full")
    matrix("gateway", fault, told.counts)
    check(told, "", harmless=True, fault=fault)


async def test_bm25_answers_while_the_name_of_the_embedding_server_is_gone(
    tmp_path: Path, matrix: Note
) -> None:
    async with embedding_world(tmp_path) as (names, proxy, service):
        told = await outage(service, *names.lost(proxy), BRIEFLY_S)
    matrix("embeddings", "DNS gone", told.counts)
    assert {asked.lacking for asked in told.questions} == {("dense",)}
    assert told.back_s is not None
    assert told.problem is None


@pytest.mark.parametrize("known", [True, False])
async def test_an_issuer_whose_name_is_gone_is_needed_only_for_its_first_keys(
    known: bool, matrix: Note
) -> None:
    need("jwt")
    met, back = await lose_issuer(4, known=known)
    matrix("OIDC issuer", "DNS gone" if known else "DNS gone from the start", met)
    assert met == Counts(answered=4 * known, refused=4 * (not known))
    assert back


async def test_streams_that_are_open_at_sigterm(matrix: Note) -> None:
    ends = Counter(await terminate())
    matrix("gateway", "SIGTERM, streams open", Counts(ends["answer"], refused=ends["error"]))
    assert ends == {"answer": STREAMS}


async def test_questions_are_answered_by_the_gateway_that_is_started_again(
    tmp_path: Path, matrix: Note
) -> None:
    told = await kill_and_restart(tmp_path / "data")
    answered = sum(each.answered for each in told)
    matrix("gateway", "SIGKILL and restart", Counts(answered, lost=len(told) - answered))
    assert any(each.tries for each in told)
