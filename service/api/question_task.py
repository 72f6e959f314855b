"""One question in progress at the HTTP edge.

One producer task, which ends with the request, answers the question. The response takes
events from a bounded channel. Therefore both kinds of disconnect cancel the question at once: a
request cancelled while it waits, and one blocked in a send or at a yield.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import structlog
from fastapi import Request
from starlette.datastructures import State

from service.answer.events import AnswerReady, BaseEvent, Done, Failed, Start
from service.answer.request import PreparedRequest
from service.api.limits import Admission, Place
from service.api.problems import ClientGone, request_id
from service.api.recordings import Origin, Recording, Recordings, digest_of
from service.api.security import access_of, tenant_of
from service.api.shutdown import DETAIL, Drain
from service.api.turns import EVENT, Turns
from service.core.channel import Channel
from service.core.concurrency import running
from service.core.errors import Draining, RevelatorError
from service.core.trace_context import FIELDS
from service.runtime import Runtime, new_id
from service.strategies.pipeline import problem_of
from service.telemetry.logs import QuestionLog

log = structlog.get_logger(__name__)

BUFFERED_EVENTS: Final = 64
ENDS: Final = (AnswerReady, Failed, Done)
HOPS: Final = 4  # turns of the event loop that an event takes from here to the socket
STALLED_S: Final = 60.0  # seconds that an event may wait for a client that does not read


class ClientStalled(RevelatorError):
    slug, title, status = "client-stalled", "The client does not read its events", 408


class QuestionTask:
    """A question in progress. `events` are sent to its client.

    With `only_end`, only the last events are kept: `answer` or `error`, and `done`.
    """

    def __init__(
        self, runtime: Runtime, question: PreparedRequest, request: Request, only_end: bool = False
    ) -> None:
        self._runtime = runtime
        self._turns: Turns = request.app.state.turns
        self._question = question
        self.collection = question.collection
        self._only_end = only_end
        self._request_id = request_id(request)
        own = getattr(request.state, "own_id", False)
        self.id = self._request_id if own else new_id()
        self._caller = {name: request.headers[name] for name in FIELDS if name in request.headers}
        self.producer: asyncio.Task[None] | None = None
        self._cut: RevelatorError | None = None
        self._channel: Channel[BaseEvent] = Channel(BUFFERED_EVENTS)

    async def events(self) -> AsyncIterator[BaseEvent]:
        """Iterate from `start` to `done`. A question that is cut off ends with `error` and
        `done`."""
        last: BaseEvent | None = None
        async for event in self._channel:
            last = self._named(event)
            yield last
        if isinstance(last, Done):
            return
        problem = problem_of(
            self._cut or RevelatorError("The question ended before it was answered. Ask it again."),
            self._request_id,
        )
        seq, ms = (last.seq, last.ms) if last else (-1, 0.0)
        yield Failed(seq=seq + 1, ms=ms, step=last and last.step, problem=problem)
        yield Done(seq=seq + 2, ms=ms, step=last and last.step)

    @property
    def more(self) -> bool:
        """Whether the next event is available."""
        return self._channel.more

    def close(self) -> None:
        """Discard the events that were not read."""
        self._channel.close()

    def cut_off(self, why: RevelatorError) -> None:
        """Stop the question. Its stream ends with an `error` that gives this reason."""
        self._cut = self._cut or why
        self._channel.close()
        if self.producer is not None:
            self.producer.cancel()

    async def watch(self, request: Request) -> None:
        """Stop the question when the client disconnects."""
        await disconnected(request)
        self.cut_off(ClientGone("The client disconnected before the answer was ready."))

    async def produce(self, place: Place, drain: Drain) -> None:
        """Answer the question and, at the end, release its place. Runs as the only producer
        task."""
        log = QuestionLog(self.id)

        async def emit(event: BaseEvent) -> None:
            log.see(event)
            await self._turns.take(EVENT)
            if not self._only_end or isinstance(event, ENDS):
                await self._put(event)

        try:
            with drain.work(self._expire):
                await self._runtime.answer(
                    self._question,
                    emit,
                    answer_id=self.id,
                    queued_s=place.waited_s,
                    caller=self._caller,
                )
        except Draining as error:
            self._cut = error
        finally:
            self._channel.close()
            place.release()
            log.write()

    async def _put(self, event: BaseEvent) -> None:
        self._channel.put_nowait(event)
        if self._channel.full():
            with anyio.move_on_after(STALLED_S) as waiting:
                await self._channel.room()
            if waiting.cancelled_caught:
                self.cut_off(ClientStalled(f"The client read no event for {STALLED_S:.0f} s."))
                await asyncio.sleep(0)
        if isinstance(event, Start):  # it reaches the socket before the work begins
            for _ in range(HOPS):
                await asyncio.sleep(0)

    def _expire(self) -> None:
        self.cut_off(Draining(DETAIL))

    def _named(self, event: BaseEvent) -> BaseEvent:
        """Add the request's id to a problem on the stream, as in other responses."""
        if not isinstance(event, Failed):
            return event
        update = {"request_id": self._request_id}
        return event.model_copy(update={"problem": event.problem.model_copy(update=update)})


@asynccontextmanager
async def open_question(
    request: Request, question: PreparedRequest, *, only_end: bool = False, unsent: bool = False
) -> AsyncIterator[QuestionTask]:
    """Admit a prepared question and start answering it. Leaving the context cancels it.

    With `unsent`, disconnects are watched, because nothing is sent before the end that would reveal
    them. Raises RateLimited, Overloaded, Draining or ClientGone before anything has started.
    """
    state = request.app.state
    place = await enter(request)
    task = QuestionTask(state.runtime, question, request, only_end)
    async with _produced(state, task, place):
        if not unsent:
            yield task
            return
        async with running(task.watch(request)):
            yield task


async def enter(request: Request) -> Place:
    """Count a question of the tenant, and wait for its place, which must be released. Raises
    RateLimited, Overloaded, Draining or ClientGone.
    """
    access_of(request).count_question(request)
    admission: Admission = request.app.state.admission
    return await admission.enter(lambda: disconnected(request), tenant_of(request).name)


@asynccontextmanager
async def _produced(state: State, task: QuestionTask, place: Place) -> AsyncIterator[None]:
    """Answer in a new task. Leaving the context cancels it."""
    try:
        async with running(task.produce(place, state.drain)) as task.producer:
            yield
    finally:
        task.close()
        place.release()


async def record(
    request: Request, question: PreparedRequest, origin: Origin, *, only_end: bool = False
) -> Recording:
    """Admit a prepared question, and answer it in a task of the app, not of the request.

    The same request with the same key gets the existing recording, and is not counted as a
    question. Raises KeyReused, and the errors of `open_question`.
    """
    state = request.app.state
    recordings: Recordings = state.recordings
    digest = digest_of(question)
    if found := recordings.same(origin, digest):
        return found
    place = await enter(request)
    if found := recordings.same(origin, digest):
        place.release()
        return found
    task = QuestionTask(state.runtime, question, request, only_end)

    def cancel() -> None:
        task.cut_off(ClientGone("The client disconnected and did not come back in time."))

    recording = Recording(task.id, origin, question.collection, digest, cancel)
    recordings.add(recording)
    recording.watch()
    state.tasks.spawn(f"recording {task.id}", _record(state, task, place, recording))
    return recording


async def _record(state: State, task: QuestionTask, place: Place, recording: Recording) -> None:
    try:
        async with _produced(state, task, place):
            async for event in task.events():
                state.recordings.put(recording, event)
    except BaseException:
        recording.failed = True
        raise
    finally:
        state.recordings.end(recording)


async def disconnected(request: Request) -> None:
    """Return when the client has disconnected. Read the body first; nothing else may receive
    meanwhile."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
