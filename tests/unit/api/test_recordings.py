"""Recordings, stepped by hand: who finds which, how long they stay, and how much room they take."""

from __future__ import annotations

import pytest

from service.answer.events import BaseEvent, Done, Failed, Start
from service.answer.request import PreparedRequest
from service.api import recordings as module
from service.api.problems import MalformedRequest
from service.api.recordings import (
    AnswerElsewhere,
    AnswerGone,
    KeyReused,
    Origin,
    Recording,
    Recordings,
    idempotency_key,
)
from service.core.domain import Problem
from service.runtime import INSTANCE

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [1_000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    return times


def asked(question: str = "Who?") -> PreparedRequest:
    return PreparedRequest(question=question, collection="docs", timeout_s=60.0)


def recorded(number: int, key: str | None = None, tenant: str = "a") -> Recording:
    origin = Origin(tenant, "POST /answer", key)
    return Recording(f"{INSTANCE}-{number}", origin, asked(), lambda: None)


def failed(status: int) -> Failed:
    problem = Problem(type="t", title="t", status=status, detail="d", request_id="r")
    return Failed(problem=problem)


def event_id(number: int, seq: int) -> str:
    return f"{INSTANCE}-{number}-{seq}"


async def test_the_tenant_that_asked_finds_what_comes_after_an_event() -> None:
    kept = Recordings()
    recording = recorded(1)
    kept.add(recording)
    for event in (Start(id="1", question="Who?"), Done(seq=1)):
        kept.put(recording, event)
    assert kept.find("a", event_id(1, 0)) == (recording, 0)
    with recording.reading(0) as reading:
        recording.end()
        assert [event.seq async for event in reading.events()] == [1]
    assert recording.over(1)
    assert not recording.over(0)


@pytest.mark.parametrize(
    ("tenant", "last", "error"),
    [
        ("b", event_id(1, 0), AnswerGone),
        ("a", event_id(2, 0), AnswerGone),
        ("a", "ffffff-1-0", AnswerElsewhere),
        ("a", "nonsense", MalformedRequest),
        ("a", f"{INSTANCE}-1-" + "9" * 40, MalformedRequest),
        ("a", "", MalformedRequest),
    ],
    ids=["another tenant", "unknown", "another process", "nonsense", "too large", "empty"],
)
async def test_others_and_unknown_ids_find_nothing(
    tenant: str, last: str, error: type[Exception]
) -> None:
    kept = Recordings()
    kept.add(recorded(1))
    with pytest.raises(error):
        kept.find(tenant, last)


async def test_an_ended_recording_stays_for_its_time(now: list[float]) -> None:
    kept, recording = Recordings(), recorded(1, "key")
    kept.add(recording)
    now[0] += 10_000  # one that runs is never too old
    assert kept.same(recording.origin, asked()) is recording
    recording.end()
    now[0] += module.TTL_S
    assert kept.same(recording.origin, asked()) is recording
    now[0] += 0.1
    assert kept.same(recording.origin, asked()) is None
    with pytest.raises(AnswerGone):
        kept.find("a", event_id(1, 0))


async def test_the_same_key_is_the_same_question_of_the_same_tenant() -> None:
    kept, recording = Recordings(), recorded(1, "key")
    kept.add(recording)
    kept.add(recorded(2))
    assert kept.same(Origin("a", "POST /answer", "key"), asked()) is recording
    for origin in [
        Origin("b", "POST /answer", "key"),
        Origin("a", "POST /answer/stream", "key"),
        Origin("a", "POST /answer", "other"),
        Origin("a", "POST /answer"),
    ]:
        assert kept.same(origin, asked()) is None
    with pytest.raises(KeyReused):
        kept.same(recording.origin, asked("Where?"))


@pytest.mark.parametrize(("status", "again"), [(503, True), (500, True), (422, False)])
async def test_what_failed_on_our_side_is_asked_again(status: int, again: bool) -> None:
    kept, recording = Recordings(), recorded(1, "key")
    kept.add(recording)
    kept.put(recording, failed(status))
    assert (kept.same(recording.origin, asked()) is None) is again


async def test_the_oldest_ended_ones_make_room_and_their_readers_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = Start(id="1", question="x" * 1_000)
    monkeypatch.setattr(module, "MOST_BYTES", 3 * len(event.model_dump_json()))
    kept, all_of = Recordings(), [recorded(number) for number in range(4)]
    for recording in all_of[:3]:
        kept.add(recording)
        kept.put(recording, event)
    for recording in all_of[1:3]:
        recording.end()
    with all_of[1].reading() as reading:
        kept.add(all_of[3])
        kept.put(all_of[3], event)
        assert [each async for each in reading.events()] == [event]
    with pytest.raises(AnswerGone):
        kept.find("a", event_id(1, 0))
    assert [kept.find("a", event_id(number, 0))[0] for number in (0, 2, 3)] == [
        all_of[0], all_of[2], all_of[3],
    ]  # fmt: skip


def test_keys_are_quoted_or_plain() -> None:
    assert [idempotency_key(given) for given in (None, "a-1", '"a-1"', " a ")] == [
        None, "a-1", "a-1", "a",
    ]  # fmt: skip
    for given in ("", " ", '""', "a b", "é", "x" * 256, 'a"b'):
        with pytest.raises(MalformedRequest):
            idempotency_key(given)


async def test_every_reader_gets_every_event() -> None:
    recording = recorded(1)
    events: list[BaseEvent] = [Start(id="1", question="Who?"), Done(seq=1)]
    with recording.reading() as one, recording.reading() as other:
        seen = one.events()
        recording.put(events[0])
        assert await anext(seen) is events[0]
        recording.put(events[1])
        recording.end()
        assert [each async for each in seen] == events[1:]
        assert [each async for each in other.events()] == events
