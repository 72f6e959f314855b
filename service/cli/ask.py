"""`revelator ask`, `chat` and `search`: questions and searches in the terminal."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import orjson
from rich.console import Console

from service.answer.events import BaseEvent
from service.answer.fold import collect
from service.answer.request import Turn, latest_turns
from service.cli.connect import open_client
from service.cli.terminal import EventPrinter
from service.core.concurrency import closing
from service.core.domain import Answer, Problem
from service.core.errors import RevelatorError
from service.core.settings import Settings

PROMPT: Final = "\n> "
CHUNK: Final = 65_536  # most bytes read at once


async def ask_in_terminal(
    settings: Settings,
    fields: Mapping[str, Any],
    *,
    url: str | None,
    as_json: bool,
    trace: Path | None = None,
) -> int:
    """Ask a question, print its events, and return the exit code: 0 if answered, 1 if the question
    failed.

    The events are also written to the file `trace`, if one is given. Raises StoreError if it cannot
    be written.
    """
    from service.evaluation.traces import recorder_of_question  # noqa: PLC0415

    recorder = recorder_of_question(trace, fields) if trace is not None else None
    printer = None if as_json else EventPrinter(Console())

    def show(event: BaseEvent) -> None:
        if recorder is not None:
            recorder.see(event)
        if printer is not None:
            printer.show(event)

    async with open_client(settings, url) as client:
        result = await collect(client.events(fields), show)
    if recorder is not None:
        await recorder.keep()
    if as_json:
        print(result.model_dump_json(indent=2))
    return 0 if isinstance(result, Answer) else 1


async def chat_in_terminal(
    settings: Settings, fields: Mapping[str, Any], *, url: str | None, source: int = 0
) -> int:
    """Answer each line of the file descriptor `source`, taking the previous messages into account.

    Returns at the end of the input with the exit code: 0, or 1 if the last question failed.
    """
    console, history, code = Console(), list[Turn](), 0
    async with open_client(settings, url) as client, closing(read_lines(source)) as lines:
        console.print("Ask a question; an empty line ends the conversation.", highlight=False)
        console.print(PROMPT, end="")
        async for line in lines:
            question = line.strip()
            if not question:
                break
            earlier = [turn.model_dump() for turn in latest_turns(history)]
            asked = {**fields, "question": question, "history": earlier}
            result: Answer | Problem | None = None
            try:
                result = await collect(client.events(asked), EventPrinter(console).show)
            except RevelatorError as error:
                if not history:
                    raise
                # A question that is too long, or a busy server, does not end the conversation.
                console.print(error.detail, markup=False, highlight=False)
            code = 0 if isinstance(result, Answer) else 1
            if isinstance(result, Answer):
                history += [
                    Turn(role="user", text=question),
                    Turn(role="assistant", text=result.answer),
                ]
            console.print(PROMPT, end="")
    return code


async def search_in_terminal(
    settings: Settings, fields: Mapping[str, Any], *, url: str | None, as_json: bool
) -> int:
    """Print the passages that a search finds, and return the exit code: 0, or 1 if there are
    none."""
    async with open_client(settings, url) as client:
        passages = await client.search(**fields)
    if as_json:
        print(orjson.dumps([passage.model_dump() for passage in passages]).decode())
        return 0 if passages else 1
    console = Console()
    for passage in passages:
        console.print(
            f"{passage.rank}. {passage.title or passage.passage_id}", style="bold", markup=False,
            highlight=False,
        )  # fmt: skip
        console.print(f"   {passage.passage_id}, score {passage.score:.3f}", markup=False)
        console.print(f"   {passage.text}\n", markup=False, highlight=False)
    return 0 if passages else 1


async def read_lines(source: int) -> AsyncIterator[str]:
    """Yield the lines of a terminal, a pipe or a file.

    The descriptor is polled by the event loop, because Ctrl-C would have to wait for a thread that
    reads it.
    """
    left = b""
    while True:
        with suppress(PermissionError):  # a file is always readable
            await anyio.wait_readable(source)
        chunk = await anyio.to_thread.run_sync(os.read, source, CHUNK)
        *lines, left = (left + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if not chunk:
            if left:
                yield left.decode(errors="replace")
            return
