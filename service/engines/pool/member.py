"""One worker of a pool: its client, its models, and its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from yarl import URL

from service.engines.base import Generator
from service.engines.pool.health import Health
from service.engines.pool.waiting import Waiter

Connect = Callable[[str], Generator]


@dataclass(frozen=True, slots=True)
class Profile:
    """What a worker reported when it joined. `signals`: Revelator's plugin runs in it."""

    models: tuple[str, ...]
    version: str | None = None
    context_tokens: int | None = None
    signals: bool = False


class Member:
    """A worker. Its `client` is closed when it is ejected, which ends the calls in progress
    there."""

    def __init__(self, url: URL, connect: Connect, now: float) -> None:
        self.url = url
        self.name = f"{url.host}:{url.port}"
        self.health = Health(since=now)
        self.profile: Profile | None = None
        self.problem = "not probed yet"
        self.calls = 0
        self.tokens = 0
        self._connect = connect
        self._client: Generator | None = None

    @property
    def client(self) -> Generator:
        if self._client is None:
            self._client = self._connect(str(self.url))
        return self._client

    async def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def serves(self, waiter: Waiter) -> bool:
        """Whether it is up, and has the model (or adapter) and the signals that a call needs."""
        if not self.health.usable or self.profile is None:
            return False
        if waiter.signals and not self.profile.signals:
            return False
        return waiter.model is None or waiter.model in self.profile.models

    def begin(self, waiter: Waiter) -> None:
        self.calls += 1
        self.tokens += waiter.tokens

    def end(self, waiter: Waiter) -> None:
        self.calls -= 1
        self.tokens -= waiter.tokens
