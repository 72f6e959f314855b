"""Recordings: questions whose events are stored, so that a disconnected client can resume.

`GET /answer/stream` (EventSource reconnects by itself) and requests with an `Idempotency-Key` are
recorded. A recorded question continues for `GRACE_S` without a reader; after its end, its events
are stored as JSON for `TTL_S`, or until newer ones need the memory. Of its request, only a digest
is stored. All recordings belong to one process, whose id is the beginning of the id of each answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from service.answer.events import BaseEvent, Failed
from service.answer.request import PreparedRequest
from service.api.wire import ClientGone, MalformedRequest
from service.core.errors import RevelatorError
from service.runtime import INSTANCE

GRACE_S: Final = 10.0  # seconds that a question continues without a reader
TTL_S: Final = 60.0  # seconds that its events are stored after its end
MOST_BYTES: Final = 48_000_000  # of all recordings together
MOST_TENANT_BYTES: Final = 16_000_000  # of the recordings of one tenant
# bytes that Python needs for a recording and for an event, beside the event's JSON (measured)
RECORDING_BYTES: Final = 5_000
EVENT_BYTES: Final = 150
LAST_EVENT_ID: Final = re.compile(r"([A-Za-z0-9._-]{1,128})-([0-9]{1,9})")
# a quoted string as in the draft, or plain text
KEY: Final = re.compile(r'"?([\x21\x23-\x7e]{1,255})"?')

NOT_KEPT: Final = (
    "The events after this one are not kept: the answer ended too long ago, newer answers needed "
    "the room, or its request had no Idempotency-Key. Ask again."
)


class AnswerGone(RevelatorError):
    slug, title, status = "answer-gone", "The answer's events are no longer kept", 410


class AnswerElsewhere(RevelatorError):
    slug, title, status = "answer-elsewhere", "Another gateway has the answer", 409


class KeyReused(RevelatorError):
    slug, title, status = "idempotency-key-reused", "The Idempotency-Key was used already", 422


@dataclass(frozen=True, slots=True)
class Origin:
    """The tenant of a question, the path, and the `Idempotency-Key`, if any."""

    tenant: str
    path: str
    key: str | None = None


def digest_of(request: PreparedRequest) -> bytes:
    """Return the SHA-256 of a request. The order of its filter's fields does not matter."""
    return hashlib.sha256(json.dumps(request.model_dump(), sort_keys=True).encode()).digest()


@dataclass(eq=False)
class Recording:
    """The events of one question, for any number of readers.

    `collection` and `digest` are of its request. `cancel` stops the question; it is forgotten when
    the question ends, since it refers to the request. `size` is in bytes of memory.
    """

    id: str
    origin: Origin
    collection: str
    digest: bytes
    cancel: Callable[[], None] | None
    size: int = RECORDING_BYTES
    failed: bool = False
    ended: bool = False
    _events: list[tuple[type[BaseEvent], bytes]] = field(default_factory=list)
    _readers: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _grace: asyncio.TimerHandle | None = None

    def put(self, event: BaseEvent) -> int:
        """Add an event. Returns its size in bytes."""
        text = event.model_dump_json().encode()
        size = len(text) + EVENT_BYTES
        self._events.append((type(event), text))
        self.size += size
        self.failed = self.failed or (isinstance(event, Failed) and event.problem.status >= 500)
        self.wake()
        return size

    def end(self) -> None:
        """Record that there are no more events."""
        self.ended = True
        self.cancel = None
        self.watch()
        self.wake()

    @contextmanager
    def reading(self, after: int = -1) -> Iterator[RecordingReader]:
        """Read the events with a `seq` greater than `after`.

        `GRACE_S` after the last reader has left, the question is cancelled.
        """
        self._readers += 1
        try:
            yield RecordingReader(self, after)
        finally:
            self._readers -= 1
            self.watch()

    def over(self, seq: int) -> bool:
        """Whether the event with this `seq` is the last one."""
        return self.ended and seq + 1 >= len(self._events)

    def has(self, position: int) -> bool:
        """Whether the event at this position is there."""
        return position < len(self._events)

    def at(self, position: int) -> BaseEvent | None:
        """Return the event at this position, or None if it is not there yet."""
        if not self.has(position):
            return None
        model, text = self._events[position]
        return model.model_validate_json(text)

    async def changed(self) -> None:
        """Return after a change: an event, the end, or a reader that leaves."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake the readers."""
        self._changed.set()
        self._changed = asyncio.Event()

    def watch(self) -> None:
        """Cancel the question if nobody has read it for `GRACE_S` from now."""
        if self._grace is not None:
            self._grace.cancel()
        if not self._readers and not self.ended:
            self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._abandon)

    def _abandon(self) -> None:
        if not self._readers and self.cancel is not None:
            self.failed = True
            self.cancel()


class RecordingReader:
    """One reader of a recording."""

    def __init__(self, recording: Recording, after: int) -> None:
        self.id = recording.id
        self.collection = recording.collection
        self._recording = recording
        self._position = after + 1
        self._gone = False

    async def events(self) -> AsyncIterator[BaseEvent]:
        """Iterate over the events as they arrive. Raises ClientGone after `leave`."""
        while not self._gone:
            event = self._recording.at(self._position)
            if event is not None:
                self._position += 1
                yield event
            elif self._recording.ended:
                return
            else:
                await self._recording.changed()
        raise ClientGone("The client disconnected before the answer was ready.")

    @property
    def more(self) -> bool:
        """Whether the next event is available."""
        return not self._gone and self._recording.has(self._position)

    def leave(self) -> None:
        """End the events, because the client has disconnected."""
        self._gone = True
        self._recording.wake()


@dataclass(eq=False)
class Shelf:
    """The recordings of one tenant: their size in bytes, and those that ended, the oldest first,
    each with the timer that removes it."""

    size: int = 0
    ended: dict[Recording, asyncio.TimerHandle] = field(default_factory=dict)


class Recordings:
    """All recordings of this process."""

    def __init__(self) -> None:
        self._by_id: dict[str, Recording] = {}
        self._by_origin: dict[Origin, Recording] = {}
        self._shelves: dict[str, Shelf] = {}
        self._size = 0

    def add(self, recording: Recording) -> None:
        self._by_id[recording.id] = recording
        if recording.origin.key is not None:
            self._by_origin[recording.origin] = recording
        self._count(recording, recording.size)

    def put(self, recording: Recording, event: BaseEvent) -> None:
        """Add an event to a recording. Finished recordings are removed to make room: the oldest of
        the tenant that uses the most.

        Running ones are kept: their number and each question's events are limited already.
        """
        self._count(recording, recording.put(event))

    def end(self, recording: Recording) -> None:
        """Record that there are no more events. `TTL_S` later, the recording is removed."""
        recording.end()
        timer = asyncio.get_running_loop().call_later(TTL_S, partial(self._drop, recording))
        self._shelves[recording.origin.tenant].ended[recording] = timer

    def same(self, origin: Origin, digest: bytes) -> Recording | None:
        """Return the recording of the same request, sent before with the same key.

        A recording that failed because of the service does not count: the question is answered
        again. Raises KeyReused.
        """
        recording = self._by_origin.get(origin)
        if recording is None or recording.failed:
            return None
        if recording.digest != digest:
            raise KeyReused(
                "This Idempotency-Key was sent with another request. Use a new key for each "
                "question."
            )
        return recording

    def find(self, tenant: str, last_event_id: str) -> tuple[Recording, int]:
        """Return the recording and the `seq` of the event with this id.

        Raises MalformedRequest, AnswerElsewhere or AnswerGone.
        """
        match = LAST_EVENT_ID.fullmatch(last_event_id)
        if match is None:
            raise MalformedRequest("Last-Event-ID is not the id of an event of this service.")
        answer_id, seq = match[1], int(match[2])
        recording = self._by_id.get(answer_id)
        if recording is not None and recording.origin.tenant == tenant:
            return recording, seq
        if not answer_id.startswith(f"{INSTANCE}-"):
            raise AnswerElsewhere(
                "Another gateway answered this question, or this one before it was restarted. Send "
                "the request to the gateway that began it, or ask again."
            )
        raise AnswerGone(NOT_KEPT)

    def _count(self, recording: Recording, size: int) -> None:
        shelf = self._shelves.setdefault(recording.origin.tenant, Shelf())
        shelf.size += size
        self._size += size
        while shelf.size > MOST_TENANT_BYTES and shelf.ended:
            self._drop(next(iter(shelf.ended)))
        while self._size > MOST_BYTES:
            ended = [each for each in self._shelves.values() if each.ended]
            if not ended:
                break
            self._drop(next(iter(max(ended, key=lambda each: each.size).ended)))

    def _drop(self, recording: Recording) -> None:
        origin = recording.origin
        shelf = self._shelves[origin.tenant]
        shelf.ended.pop(recording).cancel()
        del self._by_id[recording.id]
        if self._by_origin.get(origin) is recording:
            del self._by_origin[origin]
        shelf.size -= recording.size
        self._size -= recording.size
        if not shelf.size:
            del self._shelves[origin.tenant]


def idempotency_key(given: str | None) -> str | None:
    """Return the key in the header `Idempotency-Key`, quoted or plain. Raises MalformedRequest."""
    if given is None:
        return None
    match = KEY.fullmatch(given.strip())
    if match is None:
        raise MalformedRequest("Idempotency-Key must have 1 to 255 visible ASCII characters.")
    return match[1]
