"""`revelator ask`: ask a question in the terminal, in this process or through a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from rich.console import Console

from service.answer.events import BaseEvent
from service.answer.fold import collect
from service.cli.terminal import EventPrinter
from service.core.concurrency import closing
from service.core.domain import Answer
from service.core.locks import find_owner
from service.core.settings import Settings


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
    """Ask the server."""
    from service.client import Client  # noqa: PLC0415

    async with (
        Client(base, key=settings.server.own_key) as client,
        closing(client.events(fields)) as events,
    ):
        async for event in events:
            yield event
