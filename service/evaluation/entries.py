"""The entries through which questions are asked, this process or a running server, and what their
answers depend on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from pydantic import SecretStr

from service import __version__
from service.answer.events import BaseEvent
from service.answer.request import AnswerRequest, PreparedRequest
from service.client import Client
from service.core.concurrency import closing
from service.core.errors import InvalidRequest, NotFound
from service.core.settings import RoleSettings, Settings
from service.core.settings.urls import shown
from service.engines.base import Generator
from service.retrieval.base import EVERYTHING, Alter, anyone
from service.retrieval.collections.manifest import describe
from service.runtime import Runtime

PATIENCE_S: Final = 300.0  # how long a question waits for a busy server
_BY_DEFAULT: Final = ("default", "sample")
# These settings do not change an answer.
_LEFT_OUT: Final = {"data_dir", "server", "tracing"}


class InProcessEntry:
    """Answers questions in this process, by its `engines`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.engines = runtime.engines
        self.prepare = partial(runtime.prepare, permit=anyone, principals=EVERYTHING)

    @property
    def identity(self) -> dict[str, Any]:
        """What the answers depend on, for `run.json`."""
        return {"version": __version__, "settings": described(self._runtime.settings)}

    async def collection(self, name: str) -> dict[str, Any]:
        """Return the description of a collection."""
        # Opening the collection creates the sample, so that later evaluations describe it alike.
        return describe((await self._runtime.retrieval.collections.get(name)).manifest)

    def ask(self, request: PreparedRequest, alter: Alter | None = None) -> AsyncIterator[BaseEvent]:
        return self._runtime.ask(request, alter)


@dataclass(frozen=True)
class AtServer:
    """Asks a running server, which has its own settings and engines."""

    client: Client
    settings: Settings
    engines: ClassVar[Mapping[str, Generator]] = {}

    @property
    def identity(self) -> dict[str, Any]:
        return {"server": shown(self.client.base)}

    async def prepare(self, asked: AnswerRequest) -> PreparedRequest:
        """Let the server check the request, which it does before its first event, and cancel the
        question."""
        names = await self._collections()
        default = next((name for name in _BY_DEFAULT if name in names), _BY_DEFAULT[-1])
        resolved = {
            "collection": asked.collection or default,
            "timeout_s": asked.timeout_s or self.settings.limits.timeout_s,
        }
        prepared = PreparedRequest(**dict(asked) | resolved)
        async with closing(self.client.events(_fields(prepared), resumed=False)) as events:
            await anext(events, None)
        return prepared

    def ask(self, request: PreparedRequest, alter: Alter | None = None) -> AsyncIterator[BaseEvent]:
        """What the server's searches find cannot be altered."""
        return self.client.events(_fields(request))

    async def collection(self, name: str) -> dict[str, Any]:
        found = await self._collections()
        return found.get(name, {"name": name})

    async def _collections(self) -> dict[str, dict[str, Any]]:
        """Return the descriptions by name; none if the key may not list them."""
        try:
            found = (await self.client.collections()).collections
        except (InvalidRequest, NotFound):
            return {}
        return {entry.name: entry.model_dump() for entry in found}


Entry = InProcessEntry | AtServer


def _fields(request: PreparedRequest) -> dict[str, Any]:
    return request.model_dump(
        mode="json", exclude_none=True, include=set(AnswerRequest.model_fields)
    )


def described(settings: Settings) -> dict[str, Any]:
    """Return the settings that answers depend on as JSON, without secrets and without credentials
    in URLs."""
    settings = settings.model_copy(update={"roles": settings.effective_roles})
    plain: dict[str, Any] = _plain(settings.model_dump(mode="python", exclude=_LEFT_OUT))
    used = {role["engine"] for role in plain["roles"].values()}
    return plain | {
        "engines": {name: engine for name, engine in plain["engines"].items() if name in used}
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(name): _plain(item)
            for name, item in value.items()
            if not isinstance(item, SecretStr)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value if not isinstance(item, SecretStr)]
    if isinstance(value, str):
        return shown(value) if value.startswith(("http://", "https://")) else value
    return value if isinstance(value, bool | int | float | None) else str(value)


def with_engine(settings: Settings, name: str | None) -> Settings:
    """Return the settings with one engine for all roles. Raises InvalidRequest if the name is
    unknown.

    A role whose engine changes loses its model and templates, which belong to the other
    engine.
    """
    if name is None:
        return settings
    if name not in settings.engines:
        raise InvalidRequest(
            f"--engine {name!r} is not in the settings; the engines are "
            f"{', '.join(sorted(settings.engines))}"
        )
    roles = {
        role: role_settings if role_settings.engine == name else RoleSettings(engine=name)
        for role, role_settings in settings.effective_roles.items()
    }
    return settings.model_copy(update={"roles": roles})
