"""`revelator ask`: ask a question in the terminal, in this process or through a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from service.answer.events import BaseEvent, Event
from service.answer.fold import collect
from service.cli.terminal import EventPrinter
from service.core.concurrency import closing
from service.core.connections import open_session
from service.core.domain import Answer
from service.core.errors import EngineFailure, InvalidRequest
from service.core.locks import find_owner
from service.core.settings import Settings
from service.core.settings.urls import address_of, authorization

_EVENT: TypeAdapter[BaseEvent] = TypeAdapter(Event)
STREAM_LIMIT = 8 * 1024 * 1024  # bytes of one event: an answer's body holds every step


async def ask_in_terminal(
    settings: Settings, fields: Mapping[str, Any], *, url: str | None, as_json: bool
) -> int:
    """Ask and print. Returns the exit code: 0 if answered, 1 if the question failed."""
    owner = find_owner(settings.data_dir) if url is None else None
    base = url or (owner.url if owner else None)
    events = through_server(base, fields, settings) if base else in_process(settings, fields)
    result = await collect(events, None if as_json else EventPrinter(Console()).show)
    if as_json:
        print(result.model_dump_json(indent=2))
    return 0 if isinstance(result, Answer) else 1


async def in_process(settings: Settings, fields: Mapping[str, Any]) -> AsyncIterator[BaseEvent]:
    """Open the runtime in this process, ask, and close it."""
    from service.answer.request import parse_request  # noqa: PLC0415
    from service.runtime import open_runtime  # noqa: PLC0415

    request = parse_request(dict(fields))
    async with open_runtime(settings) as runtime:
        prepared = await runtime.prepare(request)
        async with closing(runtime.ask(prepared)) as events:
            async for event in events:
                yield event


async def through_server(
    base: str, fields: Mapping[str, Any], settings: Settings
) -> AsyncIterator[BaseEvent]:
    """Parse the server's event stream into events."""
    import aiohttp  # noqa: PLC0415

    keys = settings.server.keys
    headers = {"Accept": "text/event-stream", **authorization(base, keys[0] if keys else None)}
    base = address_of(base).url
    try:
        async with (
            open_session(silence_s=60, read_bufsize=STREAM_LIMIT) as session,
            session.post(f"{base}/answer/stream", json=dict(fields), headers=headers) as response,
        ):
            if response.status != 200:
                raise InvalidRequest(f"{base}: {await _problem_text(response)}")
            async for event in _parse(response.content):
                yield event
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EngineFailure(
            f"the server at {base} cannot be reached, or closed the connection: {error}"
        ) from None


async def _parse(lines: Any) -> AsyncIterator[BaseEvent]:
    import orjson  # noqa: PLC0415

    name = ""
    async for line in lines:
        text = line.decode().rstrip("\r\n")
        if text.startswith("event:"):
            name = text.removeprefix("event:").strip()
        elif text.startswith("data:"):
            data = orjson.loads(text.removeprefix("data:"))
            yield _EVENT.validate_python(data | {"event": name})


async def _problem_text(response: Any) -> str:
    try:
        body = await response.json(content_type=None)
        return str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status}"
