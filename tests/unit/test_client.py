"""The client's decisions: what it reads, and what it repeats."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.api.answer import encode
from service.client import BACKOFF_S, Client, _Lost, pause, read_events
from service.core.errors import (
    ConfigurationError,
    Draining,
    EngineFailure,
    NotFound,
    Overloaded,
    RevelatorError,
)
from tests.support.events import EVENTS

pytestmark = pytest.mark.anyio


async def lines(text: str) -> AsyncIterator[bytes]:
    for line in text.splitlines(keepends=True):
        yield line.encode()


def written(name: str, data: str, place: str = "a-1-0") -> str:
    return f"event: {name}\ndata: {data}\nid: {place}\n\n"


async def test_every_type_of_event_is_read_as_it_was_written() -> None:
    text = ": a comment\n\n"
    for event in EVENTS:
        text += encode("a-1", event).decode()
    read = [(place, event) async for place, event in read_events(lines(text))]
    assert read == [(f"a-1-{event.seq}", event) for event in EVENTS]


async def test_what_a_newer_server_adds_is_passed_over() -> None:
    text = written("omen", '{"seq": 0, "ms": 0}')
    text += written("query", '{"seq": 1, "ms": 0, "query": "q", "retriever": "bm25", "new": {}}')
    (read,) = [event async for _, event in read_events(lines(text))]
    assert read.seq == 1


def busy(kind: type[RevelatorError], retry_after: int | None) -> RevelatorError:
    error = kind("busy")
    error.retry_after = retry_after
    return error


@pytest.mark.parametrize(
    ("error", "failures", "left_s", "seconds"),
    [
        (busy(Overloaded, 3), 0, 60.0, 3.0),
        (busy(Draining, 5), 0, 60.0, 5.0),
        (busy(Overloaded, 3), 0, 2.9, None),
        (busy(Overloaded, None), 0, 60.0, None),
        (busy(EngineFailure, None), 0, 60.0, None),
        (busy(NotFound, 3), 0, 60.0, None),
        (ConfigurationError("key"), 0, 60.0, None),
        (_Lost("gone"), 1, 0.0, BACKOFF_S),
        (_Lost("gone"), 2, 0.0, 2 * BACKOFF_S),
        (_Lost("gone"), 3, 60.0, None),
    ],
)
def test_what_is_repeated_and_when(
    error: RevelatorError, failures: int, left_s: float, seconds: float | None
) -> None:
    assert pause(error, failures, 2, left_s) == seconds


async def test_a_client_is_opened_first() -> None:
    with pytest.raises(RuntimeError, match="async with Client"):
        await Client().collections()
    with pytest.raises(ValueError, match="not an http"):
        Client("127.0.0.1:8000")
