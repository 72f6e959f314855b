"""Recordings: questions whose events are stored, so that a disconnected client can resume.

`GET /answer/stream` (EventSource reconnects by itself) and requests with an `Idempotency-Key` are
recorded. A recorded question continues for `GRACE_S` without a reader; after its end, its events
are stored, encoded, for `TTL_S`, or until newer ones need the memory. Of its request, only a digest
is stored. All recordings belong to one process, whose id is the beginning of the id of each answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from service.answer.events import BaseEvent, Failed
from service.answer.inquiry import Emit
from service.answer.request import PreparedRequest
from service.api.wire import (
    ANSWER_ELSEWHERE,
    ANSWER_GONE,
    CLIENT_GONE,
    KEY_REUSED,
    MALFORMED_REQUEST,
    Refusal,
    Write,
    encode,
)
from service.retrieval.base import NOBODY, Principals
from service.runtime import INSTANCE

GRACE_S: Final = 10.0  # seconds that a question continues without a reader
TTL_S: Final = 60.0  # seconds that its events are stored after its end
MOST_BYTES: Final = 48_000_000  # of all recordings together
MOST_TENANT_BYTES: Final = 16_000_000  # of the recordings of one tenant
MOST_AT_ONCE: Final = 64  # events that are sent in one write
# bytes that Python needs for a recording and for an event, beside the encoded event (measured)
RECORDING_BYTES: Final = 5_000
EVENT_BYTES: Final = 150
LAST_EVENT_ID: Final = re.compile(r"([A-Za-z0-9._-]{1,128})-([0-9]{1,9})")
# a quoted string as in the draft, or plain text
KEY: Final = re.compile(r'"?([\x21\x23-\x7e]{1,255})"?')

NOT_KEPT: Final = (
    "The events after this one are not kept: the answer ended too long ago, newer answers needed "
    "the room, or its request had no Idempotency-Key. Ask again."
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The tenant of a question, the path, the `Idempotency-Key`, if any, and the principals."""

    tenant: str
    path: str
    key: str | None = None
    principals: Principals = NOBODY


def digest_of(request: PreparedRequest) -> bytes:
    """Return the SHA-256 of a request without its sender. The order of its filter's fields does not
    matter."""
    fields = request.model_dump(exclude={"principals"})
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


@dataclass(eq=False)
class Recording:
    """The encoded events of one question, for any number of readers.

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
    frames: list[tuple[type[BaseEvent], bytes]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _readers: int = 0
    _grace: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def reading(self, after: int = -1) -> AsyncIterator[RecordingReader]:
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
        return self.ended and seq + 1 >= len(self.frames)

    def wake(self) -> None:
        """Wake the readers: there is an event, the end, or a reader that leaves."""
        self.changed.set()
        self.changed = asyncio.Event()

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

    async def run(self, emit: Emit) -> None:
        """Emit the events as they arrive. Raises CLIENT_GONE after `leave`."""
        async for frames in self._available():
            for model, frame in frames:
                data = frame.split(b"\n", 2)[1].removeprefix(b"data: ")
                await emit(model.model_validate_json(data))

    async def stream(self, write: Write) -> None:
        """Write the encoded events, those that are available together at once."""
        async for frames in self._available():
            await write(b"".join(frame for _, frame in frames))

    def leave(self) -> None:
        """End the events, because the client has disconnected."""
        self._gone = True
        self._recording.wake()

    async def _available(self) -> AsyncIterator[Sequence[tuple[type[BaseEvent], bytes]]]:
        recording = self._recording
        while not self._gone:
            frames = recording.frames[self._position : self._position + MOST_AT_ONCE]
            self._position += len(frames)
            if frames:
                yield frames
            elif recording.ended:
                return
            else:
                await recording.changed.wait()
        raise Refusal(CLIENT_GONE, "The client disconnected before the answer was ready.")


class Recordings:
    """All recordings of this process."""

    def __init__(self) -> None:
        self._by_id: dict[str, Recording] = {}
        self._by_origin: dict[Origin, Recording] = {}
        # the oldest first, each with the timer that removes it
        self._ended: dict[Recording, asyncio.TimerHandle] = {}
        self._sizes: Counter[str] = Counter()  # bytes by tenant

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
        frame = encode(recording.id, event)
        recording.frames.append((type(event), frame))
        recording.size += len(frame) + EVENT_BYTES
        if isinstance(event, Failed) and event.problem.status >= 500:
            recording.failed = True
        recording.wake()
        self._count(recording, len(frame) + EVENT_BYTES)

    def end(self, recording: Recording) -> None:
        """Record that there are no more events. `TTL_S` later, the recording is removed."""
        recording.ended, recording.cancel = True, None
        recording.watch()
        recording.wake()
        timer = asyncio.get_running_loop().call_later(TTL_S, partial(self._drop, recording))
        self._ended[recording] = timer

    def same(self, origin: Origin, digest: bytes) -> Recording | None:
        """Return the recording of the same request, sent before with the same key.

        A recording that failed because of the service does not count: the question is answered
        again. Raises KEY_REUSED.
        """
        recording = self._by_origin.get(origin)
        if recording is None or recording.failed:
            return None
        if recording.digest != digest:
            raise Refusal(
                KEY_REUSED,
                "This Idempotency-Key was sent with another request. Use a new key for each "
                "question.",
            )
        return recording

    def find(
        self, tenant: str, last_event_id: str, principals: Principals = NOBODY
    ) -> tuple[Recording, int]:
        """Return the recording and the `seq` of the event with this id.

        Raises MALFORMED_REQUEST, ANSWER_ELSEWHERE or ANSWER_GONE.
        """
        match = LAST_EVENT_ID.fullmatch(last_event_id)
        if match is None:
            raise Refusal(
                MALFORMED_REQUEST, "Last-Event-ID is not the id of an event of this service."
            )
        answer_id, seq = match[1], int(match[2])
        recording = self._by_id.get(answer_id)
        if recording is not None:
            origin = recording.origin
            if (origin.tenant, origin.principals) == (tenant, principals):
                return recording, seq
        if not answer_id.startswith(f"{INSTANCE}-"):
            raise Refusal(
                ANSWER_ELSEWHERE,
                "Another gateway answered this question, or this one before it was restarted. Send "
                "the request to the gateway that began it, or ask again.",
            )
        raise Refusal(ANSWER_GONE, NOT_KEPT)

    def _count(self, recording: Recording, size: int) -> None:
        tenant = recording.origin.tenant
        self._sizes[tenant] += size
        while self._sizes[tenant] > MOST_TENANT_BYTES and self._drop_oldest(tenant):
            pass
        while self._sizes.total() > MOST_BYTES and self._ended:
            tenants = {ended.origin.tenant for ended in self._ended}
            self._drop_oldest(max(tenants, key=self._sizes.__getitem__))

    def _drop_oldest(self, tenant: str) -> bool:
        """Remove the oldest finished recording of a tenant. Returns whether there was one."""
        for recording in self._ended:
            if recording.origin.tenant == tenant:
                self._drop(recording)
                return True
        return False

    def _drop(self, recording: Recording) -> None:
        origin = recording.origin
        self._ended.pop(recording).cancel()
        del self._by_id[recording.id]
        if self._by_origin.get(origin) is recording:
            del self._by_origin[origin]
        self._sizes[origin.tenant] -= recording.size
        if not self._sizes[origin.tenant]:
            del self._sizes[origin.tenant]


def idempotency_key(given: str | None) -> str | None:
    """Return the key in the header `Idempotency-Key`, quoted or plain. Raises MALFORMED_REQUEST."""
    if given is None:
        return None
    match = KEY.fullmatch(given.strip())
    if match is None:
        raise Refusal(
            MALFORMED_REQUEST, "Idempotency-Key must have 1 to 255 visible ASCII characters."
        )
    return match[1]
