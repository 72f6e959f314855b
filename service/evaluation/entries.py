"""Where questions are asked: in this process, or at a running server, through the same entry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Protocol

import anyio

from service import __version__
from service.answer.events import BaseEvent
from service.answer.request import AnswerRequest, PreparedRequest
from service.api.client import AnswerClient, open_client
from service.core.concurrency import closing
from service.core.errors import InvalidRequest, Overloaded
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.engines.base import Generator
from service.evaluation.identity import described
from service.evaluation.runner import Ask
from service.retrieval.base import Retriever
from service.retrieval.client import send, session_with
from service.retrieval.collections.catalog import describe
from service.runtime import Runtime, open_runtime

PATIENCE_S: Final = 300.0  # that a question waits for a server that is busy
LONGEST_WAIT_S: Final = 30.0  # between two attempts
_TIMEOUT_S: Final = 30.0  # of a look at the collections
_BY_DEFAULT: Final = ("default", "sample")


# The retriever for a question, in place of the deployment's own.
Alter = Callable[[Retriever, PreparedRequest], Retriever]


class Entry(Protocol):
    """What answers. `identity` is what its answers depend on, for `run.json`."""

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def engines(self) -> Mapping[str, Generator]:
        """The engines that are open here."""

    async def prepare(self, asked: AnswerRequest) -> PreparedRequest:
        """Raises InvalidRequest, LoopUnavailable or NotFound if it cannot be answered here."""

    def ask(self, request: PreparedRequest) -> AsyncIterator[BaseEvent]: ...

    async def collection(self, name: str) -> dict[str, Any]:
        """Describe a collection."""

    def altered(self, alter: Alter) -> Ask:
        """Return an `ask` whose questions search with another retriever each. Raises
        InvalidRequest where that cannot be done."""


class InProcess:
    """This process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.engines = runtime.engines
        self.ask = runtime.ask
        self.prepare = runtime.prepare

    @property
    def identity(self) -> dict[str, Any]:
        return {"version": __version__, "settings": described(self._runtime.settings)}

    async def collection(self, name: str) -> dict[str, Any]:
        if self._runtime.stores is None:
            return {"name": name}
        return describe(await self._runtime.stores.collections.manifest(name))

    def altered(self, alter: Alter) -> Ask:
        def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
            retriever = alter(self._runtime.retriever, request)
            return replace(self._runtime, retriever=retriever).ask(request)

        return ask


class AtServer:
    """A running server, which has settings of its own."""

    engines: Mapping[str, Generator] = MappingProxyType({})

    def __init__(self, client: AnswerClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    @property
    def identity(self) -> dict[str, Any]:
        return {"server": shown(self._client.base)}

    async def prepare(self, asked: AnswerRequest) -> PreparedRequest:
        """The server checks a request before its first event; then the question is cancelled."""
        names = await self._collections()
        default = next((name for name in _BY_DEFAULT if name in names), _BY_DEFAULT[-1])
        resolved = {
            "collection": asked.collection or default,
            "timeout_s": asked.timeout_s or self._settings.limits.timeout_s,
        }
        prepared = PreparedRequest(**dict(asked) | resolved)
        async with closing(self.ask(prepared)) as events:
            await anext(events, None)
        return prepared

    async def ask(self, request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        """Iterate over the events. A server that is busy is asked again, for a while."""
        fields = request.model_dump(mode="json", exclude_none=True)
        with anyio.move_on_after(PATIENCE_S) as patience:
            while True:
                try:
                    async with closing(self._client.events(fields)) as events:
                        first = await anext(events, None)
                        patience.deadline = float("inf")
                        if first is not None:
                            yield first
                        async for event in events:
                            yield event
                    return
                except Overloaded as busy:
                    await anyio.sleep(min(busy.retry_after or 1, LONGEST_WAIT_S))
        raise Overloaded(f"{shown(self._client.base)} was busy for {PATIENCE_S:.0f} s")

    async def collection(self, name: str) -> dict[str, Any]:
        found = await self._collections()
        return found.get(name, {"name": name})

    def altered(self, alter: Alter) -> Ask:
        raise InvalidRequest("--robustness changes what searches find, which --url does not allow")

    async def _collections(self) -> dict[str, dict[str, Any]]:
        """By name; none where the server's retriever is external, or the key may not see them."""
        base = self._client.base.rstrip("/")
        try:
            async with session_with(
                base, self._settings, _TIMEOUT_S, "start the server"
            ) as session:
                found = await send(session, "GET", f"{base}/collections")
        except InvalidRequest:
            return {}
        return {each["name"]: each for each in found["collections"]}


@asynccontextmanager
async def open_entry(settings: Settings, url: str | None) -> AsyncIterator[Entry]:
    """Open the server at `url`, or a runtime in this process."""
    if url is None:
        async with open_runtime(settings) as runtime:
            yield InProcess(runtime)
    else:
        async with open_client(url, settings) as client:
            yield AtServer(client, settings)
