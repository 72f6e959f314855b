"""What a server sends to its client: streams of events, and refusals as errors."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import TypeAdapter

from service.answer.events import BaseEvent, Event, event_models
from service.core.errors import (
    ConfigurationError,
    Draining,
    EngineFailure,
    InvalidRequest,
    LoopUnavailable,
    NotFound,
    Overloaded,
    RevelatorError,
    StoreBusy,
    StoreError,
)
from service.core.settings.urls import shown

if TYPE_CHECKING:
    import aiohttp

_KNOWN: Final = frozenset(event_models())
_EVENT: Final[TypeAdapter[BaseEvent]] = TypeAdapter(Event)


async def read_events(lines: AsyncIterable[bytes]) -> AsyncIterator[tuple[str, BaseEvent]]:
    """Parse the lines of an event stream, and yield the id of each event with the event."""
    place = ""
    async for fields in event_fields(lines):
        place = fields.get("id", place)
        if fields.get("event") in _KNOWN and "data" in fields:
            data = orjson.loads(fields["data"]) | {"event": fields["event"]}
            yield place, _EVENT.validate_python(data, extra="ignore")


# Errors for a server's refusals.

EVENT_STREAM: Final = "text/event-stream"
ANOTHER: Final = (
    "this is not a Revelator server; give its address without a path, such as http://127.0.0.1:8000"
)
_NO_SUCH_PATH: Final = {404, 405, 501}  # the path, or the method, does not exist
# Advice for a refused key: an unknown one, and one without the right to do this.
_KEY_ADVICE: Final = "give one of that server's keys by --key or REVELATOR_KEY"
_RIGHT_ADVICE: Final = (
    "use a key that may do this; the operator of that server grants rights and collections"
)
# Our errors for problems, by the end of their type. Others are mapped by their status.
_PROBLEMS: Final[dict[str, type[RevelatorError]]] = {
    **{error.slug: error for error in (LoopUnavailable, NotFound, Draining, Overloaded)},
    "rate-limited": Overloaded,
    "answer-gone": EngineFailure,
    "answer-elsewhere": EngineFailure,
}


async def event_fields(lines: AsyncIterable[bytes]) -> AsyncIterator[dict[str, str]]:
    """Parse the lines of an event stream, and yield the fields of each event by their names."""
    fields: dict[str, str] = {}
    async for line in lines:
        text = line.decode().rstrip("\r\n")
        if text:  # a comment has an empty name
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            yield fields
            fields = {}


async def refusal_error(
    response: aiohttp.ClientResponse, where: str, again: str = ""
) -> RevelatorError:
    """Return the error for a refusal, with the server's own message, after `where`.

    ConfigurationError for a key; Overloaded or Draining, with `retry_after`; NotFound and
    LoopUnavailable; EngineFailure for an answer that is not stored; StoreBusy; else InvalidRequest,
    or StoreError for a status from 500 on, with the advice `again`.
    """
    error = error_of(await response.read(), response.status, where, again)
    wait = response.headers.get("Retry-After", "")
    error.retry_after = int(wait) if wait.isdecimal() else None
    return error


def error_of(content: bytes, status: int, where: str, again: str) -> RevelatorError:
    """Return the error for the body of a refusal. An unknown path shows that it is another
    service."""
    urn, detail = _problem(content)
    ours, slug = urn.startswith("urn:revelator:"), urn.rpartition(":")[2]
    if status in _NO_SUCH_PATH and not ours:
        detail = ANOTHER
    refused = status in (401, 403)
    message = detail if ours and not refused else f"{where}: {detail or f'HTTP {status}'}"
    if refused:
        advice = _RIGHT_ADVICE if slug == "not-allowed" else _KEY_ADVICE
        return ConfigurationError(f"{message.removesuffix('.')}; {advice}")
    kind = _PROBLEMS.get(slug)
    if kind is None:
        kind = InvalidRequest if status < 500 else StoreError
        kind = StoreBusy if (slug, status) == (StoreBusy.slug, StoreBusy.status) else kind
    return kind(f"{message}; {again}" if again and kind is StoreError else message)


def _problem(content: bytes) -> tuple[str, str]:
    """Return the type of a problem and its detail. Of another body, the type is empty."""
    try:
        problem = orjson.loads(content)
        return str(problem.get("type", "")), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "", content[:200].decode(errors="replace")


def decoded(content: bytes, url: str) -> Any:
    try:
        return orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        raise InvalidRequest(f"{shown(url)}: {ANOTHER}") from None
