"""The workers of a pool: their addresses and state, the choice of one for a call, and the calls
that wait.

The worker of a call is chosen by rendezvous hashing (Thaler and Ravishankar, 1998) with bounded
load (Mirrokni, Thorup and Zadimoghaddam, 2018), else the least loaded one.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from yarl import URL

from service.core.errors import EngineFailure, EngineUnreached, Overloaded
from service.core.metrics import Phase
from service.core.settings import EngineSettings
from service.engines.base import Profile

if TYPE_CHECKING:
    from service.engines.vllm import VllmGenerator


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`resolve_s`, `probe_s`: between DNS look-ups and between probes; the latter also limits a
    probe. `per_worker`: concurrent calls. `waiting`: calls that wait; further ones get 503, and so
    does a call that waits longer than `wait_s`, or `outage_s` while no worker is up. `eject_after`:
    consecutive failures. `retries`: how often a call is restarted at another worker.
    """

    resolve_s: float = 5.0
    probe_s: float = 2.0
    per_worker: int = 64
    waiting: int = 2048
    wait_s: float = 30.0
    outage_s: float = 5.0
    eject_after: int = 3
    retries: int = 3


LIMITS: Final = PoolLimits()
DNS_TIMEOUT_S: Final = 5.0


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits. `turn` is the number of its question's earlier calls, `tokens` an estimate
    of its size.

    `model` None accepts any model. `avoid` are workers that failed it before; `begun`: it has
    output.
    """

    question: str
    turn: int = 0
    tokens: int = 0
    model: str | None = None
    signals: bool = False
    avoid: frozenset[str] = frozenset()
    begun: bool = False


class Worker:
    """A worker and its state.

    `joining`: its models are not known yet. `ejected`: it failed; a successful probe readmits it,
    and then a single failure ejects it again until a call or another probe has succeeded.
    `draining`: it is no longer listed; it finishes its calls and gets no new ones. Its `client` is
    closed when it is ejected, which ends the calls in progress there.
    """

    def __init__(self, url: URL, connect: Callable[[str], VllmGenerator]) -> None:
        self.url = url
        self.name = f"{url.host}:{url.port}"
        self.phase: Phase = "joining"
        self.failures = 0  # of calls and probes, in a row
        self.profile = Profile()
        self.problem = "not probed yet"
        self.calls = 0
        self.tokens = 0
        self._connect = connect
        self._client: VllmGenerator | None = None

    @property
    def client(self) -> VllmGenerator:
        if self._client is None:
            self._client = self._connect(str(self.url))
        return self._client

    async def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def phase_after(self, failure: EngineFailure, limits: PoolLimits) -> Phase:
        """Note a failed call or probe, and return the phase that follows. A worker that accepts no
        connection is ejected at once."""
        self.problem = failure.detail
        self.failures += 1
        if self.phase == "draining":
            return self.phase
        tolerated = self.failures < limits.eject_after and not isinstance(failure, EngineUnreached)
        return "up" if self.phase == "up" and tolerated else "ejected"

    def serves(self, waiter: WaitingCall) -> bool:
        """Whether it is up, and has the model (or adapter) and the signals that a call needs."""
        if self.phase != "up":
            return False
        if waiter.signals and not self.profile.signals:
            return False
        return waiter.model is None or waiter.model in self.profile.models

    def why_not(self, waiter: WaitingCall) -> str:
        """Explain why it does not serve a call."""
        if self.phase != "up":
            return f"{self.phase}, {self.problem}"
        if waiter.model is not None and waiter.model not in self.profile.models:
            return f"serves {', '.join(self.profile.models)}, not {waiter.model}"
        obstacle = self.profile.obstacle or "Revelator's plugin is not running"
        return f"provides no token signals: {obstacle}"

    @property
    def trouble(self) -> str | None:
        """Why it is not up, or why it provides no signals although Revelator's plugin runs."""
        return self.profile.obstacle if self.phase == "up" else self.problem


async def addresses(urls: Sequence[URL], resolve: bool) -> tuple[URL, ...]:
    """Return the workers' base URLs, sorted, without duplicates.

    With `resolve`, a host name represents all of its addresses; a Kubernetes headless service
    returns those of pods that are ready and not terminating. Raises EngineFailure if a name is
    unknown or has no address.
    """
    if not resolve:
        return tuple(sorted(set(urls)))
    found: set[URL] = set()
    for url in urls:
        found |= {url.with_host(address) for address in await _look_up(url)}
    return tuple(sorted(found))


async def _look_up(url: URL) -> list[str]:
    host = url.host or ""
    try:
        async with asyncio.timeout(DNS_TIMEOUT_S):
            rows = await asyncio.get_running_loop().getaddrinfo(
                host, url.port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        raise EngineFailure(
            f"the DNS look-up of {host} took longer than {DNS_TIMEOUT_S:g} s"
        ) from None
    except UnicodeError:
        raise EngineFailure(f"{host} is not a valid host name; check engines.*.urls") from None
    except OSError as error:
        raise EngineFailure(
            f"the DNS has no address for {host} ({error.strerror}); check engines.*.urls, and "
            "that the service has ready pods"
        ) from None
    return [str(address[0]) for *_, address in rows]


# The question's worker is used up to this multiple of its share of all work,
BOUND: Final = 1.5
# and always up to this many tokens: a batch absorbs them easily, a cold prefix cache costs more.
SLACK: Final = 4096


def choose(loads: Sequence[tuple[str, int]], key: str, tokens: int) -> str:
    """Return the worker for a call of about `tokens`; `loads` are the names of workers with their
    outstanding tokens.

    Calls with the same key go to the same worker as long as it has at most `BOUND` times its share
    of the outstanding tokens, or `SLACK`; then to the key's second worker, and so on. The least
    loaded one is chosen for an empty key.
    """
    most = max(SLACK, BOUND * (sum(load for _, load in loads) + tokens) / len(loads))
    if key:
        for name, load in sorted(loads, key=lambda pair: affinity(key, pair[0]), reverse=True):
            if not load or load + tokens <= most:
                return name
    return min(loads, key=lambda pair: (pair[1], pair[0]))[0]


def affinity(key: str, name: str) -> int:
    """Return the worker's score for a key, which is the same in every gateway and process."""
    return int.from_bytes(hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest())


class WorkerAdmission:
    """Assigns workers to calls. Calls wait in their order, those of questions in progress before
    those of new ones, and none holds up others that other workers could take.

    `workers` is the pool's own dictionary, by name; `observe` receives (worker, +1 or -1).
    """

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        workers: dict[str, Worker],
        observe: Callable[[str, int], None],
        limits: PoolLimits = LIMITS,
    ) -> None:
        self._name = name
        self._most = settings.max_concurrency
        self._limits = limits
        self._workers = workers
        self._observe = observe
        self._under_way: dict[WaitingCall, asyncio.Future[Worker]] = {}
        self._new: dict[WaitingCall, asyncio.Future[Worker]] = {}
        self._running = 0

    @property
    def waiting(self) -> int:
        return len(self._under_way) + len(self._new)

    @asynccontextmanager
    async def place(self, waiter: WaitingCall) -> AsyncIterator[Worker]:
        """Assign a worker to one call. Leaving the context frees the place for the next call.

        Raises Overloaded if too many calls wait or the wait is too long, EngineFailure if no worker
        that serves the call is up. A caller that leaves while waiting is removed.
        """
        worker = None if self.waiting else self._free_for(waiter)
        if worker is not None:
            self._begin(waiter, worker)
        else:
            worker = await self._wait(waiter)
        try:
            yield worker
        finally:
            self._end(waiter, worker)

    def dispatch(self) -> None:
        """Assign waiting calls, after a place became free or a worker joined."""
        nowhere: set[tuple[str | None, bool]] = set()  # what was needed where there was no place
        for queue in (self._under_way, self._new):
            for waiter in list(queue):
                if not self._has_room():
                    return
                needs = (waiter.model, waiter.signals)
                worker = None if needs in nowhere else self._free_for(waiter)
                if worker is None:
                    nowhere.add(needs)
                    continue
                promise = queue.pop(waiter)
                if not promise.cancelled():
                    self._begin(waiter, worker)
                    promise.set_result(worker)

    async def _wait(self, waiter: WaitingCall) -> Worker:
        if self.waiting >= self._limits.waiting:
            raise Overloaded(
                f"{self.waiting} calls are waiting for engine {self._name!r}; try again "
                "later, or add workers"
            )
        up = any(worker.serves(waiter) for worker in self._workers.values())
        queue = self._under_way if waiter.turn else self._new
        promise: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        queue[waiter] = promise
        self.dispatch()  # others may wait for a model that this call does not need
        try:
            async with asyncio.timeout(self._limits.wait_s if up else self._limits.outage_s):
                return await promise
        except TimeoutError:
            if promise.done() and not promise.cancelled():
                return promise.result()
            raise self._too_long(waiter) from None
        except asyncio.CancelledError:
            if promise.done() and not promise.cancelled():
                self._end(waiter, promise.result())
            raise
        finally:
            queue.pop(waiter, None)

    def _too_long(self, waiter: WaitingCall) -> Exception:
        if any(worker.serves(waiter) for worker in self._workers.values()):
            return Overloaded(
                f"no worker of engine {self._name!r} became free within {self._limits.wait_s:g} s; "
                "try again later, or add workers"
            )
        return outage(self._name, waiter, self._workers.values())

    def _has_room(self) -> bool:
        """Whether any call could be sent. Thousands may wait, and this is evaluated for each of
        them.
        """
        most = self._limits.per_worker
        return self._running < self._most and any(
            worker.phase == "up" and worker.calls < most for worker in self._workers.values()
        )

    def _free_for(self, waiter: WaitingCall) -> Worker | None:
        if self._running >= self._most:
            return None
        serving = [worker for worker in self._workers.values() if worker.serves(waiter)]
        others = [worker for worker in serving if worker.name not in waiter.avoid]
        most = self._limits.per_worker
        free = [(worker.name, worker.tokens) for worker in others or serving if worker.calls < most]
        return self._workers[choose(free, waiter.question, waiter.tokens)] if free else None

    def _begin(self, waiter: WaitingCall, worker: Worker) -> None:
        self._running += 1
        worker.calls += 1
        worker.tokens += waiter.tokens
        self._observe(worker.name, 1)

    def _end(self, waiter: WaitingCall, worker: Worker) -> None:
        self._running -= 1
        worker.calls -= 1
        worker.tokens -= waiter.tokens
        self._observe(worker.name, -1)
        self.dispatch()


def outage(name: str, waiter: WaitingCall, workers: Iterable[Worker]) -> EngineFailure:
    """Explain why no worker can take a call."""
    reasons = "; ".join(f"{worker.name}: {worker.why_not(waiter)}" for worker in workers)
    return EngineFailure(
        f"no worker of engine {name!r} can answer: {reasons or 'it has none'}; run "
        "`revelator check` to see the pool"
    )
