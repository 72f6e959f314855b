"""Recordings, stepped by hand: who finds which, how long they stay, and how much room they take."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.answer.events import Start
from service.answer.request import PreparedRequest
from service.api import recordings as module
from service.api.recordings import (
    Origin,
    Recording,
    Recordings,
    digest_of,
    idempotency_key,
)
from service.api.wire import (
    ANSWER_GONE,
    MALFORMED_REQUEST,
    Kind,
    Refusal,
)
from service.core.concurrency import emitted
from service.runtime import INSTANCE
from tests.support.live import eventually


def asked(question: str = "Who?", **filtered: tuple[str, ...]) -> bytes:
    return digest_of(
        PreparedRequest(question=question, collection="docs", timeout_s=60.0, filter=filtered)
    )


def recorded(number: int, key: str | None = None, tenant: str = "a") -> Recording:
    origin = Origin(tenant, "POST /answer", key)
    return Recording(f"{INSTANCE}-{number}", origin, "docs", asked(), lambda: None)


@contextmanager
def refused(kind: Kind) -> Iterator[None]:
    with pytest.raises(Refusal) as raised:
        yield
    assert raised.value.kind is kind


def event_id(number: int, seq: int) -> str:
    return f"{INSTANCE}-{number}-{seq}"


async def test_an_ended_recording_stays_for_its_time_and_leaves_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TTL_S", 0.1)
    kept, recording = Recordings(), recorded(1, "key")
    kept.add(recording)
    await asyncio.sleep(0.15)  # one that runs is never too old
    kept.end(recording)
    assert recording.cancel is None  # it would hold the whole request
    assert kept.same(recording.origin, asked()) is recording
    gone = weakref.ref(recording)
    origin = recording.origin
    del recording
    await eventually(lambda: gone() is None)
    assert kept.same(origin, asked()) is None
    with refused(ANSWER_GONE):
        kept.find("a", event_id(1, 0))


@pytest.mark.parametrize("own", [True, False], ids=["of one tenant", "of all"])
async def test_the_oldest_ended_ones_make_room_and_their_readers_go_on(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = Start(id="1", question="x" * 10_000)
    monkeypatch.setattr(module, f"MOST_{'TENANT_' if own else ''}BYTES", 3 * 16_000)
    others = "a" if own else "b"  # the tenant that has the most makes room for one that has less
    kept, all_of = Recordings(), [recorded(number) for number in range(3)]
    all_of.append(recorded(3, tenant=others))
    for recording in all_of[:3]:
        kept.add(recording)
        kept.put(recording, event)
    for recording in all_of[1:3]:
        kept.end(recording)
    async with all_of[1].reading() as reading:
        kept.add(all_of[3])
        kept.put(all_of[3], event)
        assert [each async for each in emitted(reading.run)] == [event]
    with refused(ANSWER_GONE):
        kept.find("a", event_id(1, 0))
    for number in (0, 2, 3):
        tenant = all_of[number].origin.tenant
        assert kept.find(tenant, event_id(number, 0))[0] is all_of[number]
    monkeypatch.setattr(module, "MOST_BYTES", 16_000)
    kept.end(all_of[0])
    kept.put(all_of[3], event)  # the last one runs, and is larger than all of them may be
    assert kept.find(others, event_id(3, 0))[0] is all_of[3]
    with refused(ANSWER_GONE):
        kept.find("a", event_id(0, 0))


def test_keys_are_quoted_or_plain() -> None:
    assert [idempotency_key(given) for given in (None, "a-1", '"a-1"', " a ")] == [
        None, "a-1", "a-1", "a",
    ]  # fmt: skip
    for given in ("", " ", '""', "a b", "é", "x" * 256, 'a"b'):
        with refused(MALFORMED_REQUEST):
            idempotency_key(given)
