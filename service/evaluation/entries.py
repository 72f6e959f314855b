"""Where questions are asked: in this process, or at a running server, through the same entry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from service import __version__
from service.answer.events import BaseEvent
from service.answer.request import AnswerRequest, PreparedRequest
from service.client import Client
from service.core.concurrency import closing
from service.core.errors import InvalidRequest, NotFound
from service.core.settings import Settings
from service.core.settings.urls import shown
from service.engines.base import Generator
from service.evaluation.identity import described
from service.evaluation.runner import Ask
from service.retrieval.base import Retriever
from service.retrieval.collections.catalog import describe
from service.runtime import Runtime

PATIENCE_S: Final = 300.0  # that a question waits for a server that is busy
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


class InProcessEntry:
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
        # Opened, so that the sample is described as it is at the next evaluation, too.
        return describe((await self._runtime.stores.collections.get(name)).manifest)

    def altered(self, alter: Alter) -> Ask:
        def ask(request: PreparedRequest) -> AsyncIterator[BaseEvent]:
            retriever = alter(self._runtime.retriever, request)
            return replace(self._runtime, retriever=retriever).ask(request)

        return ask


class AtServer:
    """A running server, which has settings of its own."""

    engines: Mapping[str, Generator] = MappingProxyType({})

    def __init__(self, client: Client, settings: Settings) -> None:
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
        async with closing(self._client.events(_fields(prepared), resumed=False)) as events:
            await anext(events, None)
        return prepared

    def ask(self, request: PreparedRequest) -> AsyncIterator[BaseEvent]:
        """Iterate over the events."""
        return self._client.events(_fields(request))

    async def collection(self, name: str) -> dict[str, Any]:
        found = await self._collections()
        return found.get(name, {"name": name})

    def altered(self, alter: Alter) -> Ask:
        raise InvalidRequest("--robustness changes what searches find, which --url does not allow")

    async def _collections(self) -> dict[str, dict[str, Any]]:
        """By name; none where the server's retriever is external, or the key may not see them."""
        try:
            found = await self._client.collections()
        except (InvalidRequest, NotFound):
            return {}
        return {each.name: each.model_dump() for each in found}


def _fields(request: PreparedRequest) -> dict[str, Any]:
    return request.model_dump(mode="json", exclude_none=True)
