"""Ask a running server from a command, and read its event stream as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import TypeAdapter

from service.answer.events import BaseEvent, Event
from service.core.connections import open_session, reason_of
from service.core.errors import (
    ConfigurationError,
    Draining,
    EngineFailure,
    InvalidRequest,
    LoopUnavailable,
    NotFound,
    Overloaded,
    RevelatorError,
)
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization, shown
from service.retrieval.client import ANOTHER, refusal

if TYPE_CHECKING:
    import aiohttp

STREAM_LIMIT: Final = 8 * 1024 * 1024  # bytes of one event: an answer's body holds every step
SILENCE_S: Final = 60.0  # the server sends a comment more often
_EVENT: Final[TypeAdapter[BaseEvent]] = TypeAdapter(Event)
# What a refusal is here; all others are invalid requests.
_REFUSALS: Final = {error.slug: error for error in (LoopUnavailable, NotFound, Draining)}
_BUSY: Final = frozenset({Overloaded.slug, "rate-limited"})


class AnswerClient:
    """Asks the server at `base`, with any number of questions at the same time."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self.base = base

    async def events(self, fields: Mapping[str, Any]) -> AsyncIterator[BaseEvent]:
        """Iterate over the events of one question. Closing the iterator cancels the question.

        Raises what the server refuses it for, with its message: Overloaded with `retry_after`,
        LoopUnavailable, NotFound, ConfigurationError for a key, InvalidRequest; EngineFailure if
        the connection is lost.
        """
        import aiohttp  # noqa: PLC0415

        headers = {"Accept": "text/event-stream"}
        address = f"{address_of(self.base).url}/answer/stream"
        try:
            async with self._session.post(address, json=dict(fields), headers=headers) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                if response.content_type != "text/event-stream":
                    raise InvalidRequest(f"{shown(self.base)}: {ANOTHER}")
                async for event in _parse(response.content):
                    yield event
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineFailure(
                f"the server at {shown(self.base)} cannot be reached, or closed the connection: "
                f"{reason_of(error)}; check the address and that the server runs (revelator serve)"
            ) from None

    async def _refusal(self, response: aiohttp.ClientResponse) -> RevelatorError:
        content = await response.read()
        detail = refusal(content, response.status) or f"HTTP {response.status}"
        try:
            slug = str(orjson.loads(content)["type"]).rpartition(":")[2]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            slug = ""
        said = f"{shown(self.base)}: {detail}"
        if response.status in {401, 403}:
            return ConfigurationError(f"{said}; set server.keys to a key of that server")
        if slug not in _BUSY:
            return _REFUSALS.get(slug, InvalidRequest)(said)
        busy = Overloaded(said)
        wait = response.headers.get("Retry-After", "")
        busy.retry_after = int(wait) if wait.isdigit() else Overloaded.retry_after
        return busy


@asynccontextmanager
async def open_client(base: str, settings: Settings) -> AsyncIterator[AnswerClient]:
    """Open a client that sends the first of the settings' keys."""
    headers = authorization(base, settings.server.own_key)
    async with open_session(
        headers=headers, silence_s=SILENCE_S, limit=0, read_bufsize=STREAM_LIMIT
    ) as session:
        yield AnswerClient(session, base)


async def _parse(lines: Any) -> AsyncIterator[BaseEvent]:
    name = ""
    async for line in lines:
        text = line.decode().rstrip("\r\n")
        if text.startswith("event:"):
            name = text.removeprefix("event:").strip()
        elif text.startswith("data:"):
            data = orjson.loads(text.removeprefix("data:"))
            yield _EVENT.validate_python(data | {"event": name})
