"""An API server's side of `sender.py`: the signals of its calls, joined over the workers' ranks.

Tensor parallelism splits the heads: each rank sends means over its own, which are weighted here by
the ranks' numbers of heads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.output import changed_maxima
from service.engines.signals import Maximum

Floats = NDArray[np.float32]
WAIT_S = 20.0
SILENT = (
    "the workers' signals did not arrive: they must run on the host of the API server, as the same "
    "user"
)


class SignalsLost(Exception):
    """The signals of a call are not available; the text says why."""


class Inbox:
    """What arrived for one call. The next token has the next of `numbers` and, with attention, of
    `rows`, as base64 of float32; its own row changed the maxima as the next of `updates` says. A
    score has `means`, one a token, and `rows_at`, by position, when it is complete.
    """

    def __init__(self) -> None:
        self.numbers: list[tuple[float, float]] = []
        self.updates: list[Sequence[Maximum]] = []
        self.rows: list[str] = []
        self.rows_at: dict[int, str] = {}
        self.means: Floats = np.zeros(0, np.float32)
        self.ended: tuple[str, ...] = ()  # calls whose end the workers hear of with this one
        self._error: str | None = None
        self._ranks: dict[int, deque[dict[str, Any]]] = {}
        self._news = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether a worker has heard of the call."""
        return bool(self._ranks)

    def put(self, packet: dict[str, Any]) -> None:
        """Take a packet. Those of all ranks are alike, and joined one by one."""
        rank, ranks = packet["rank"]
        self._error = self._error or packet.get("error")
        self._ranks.setdefault(rank, deque()).append(packet)
        while len(self._ranks) == ranks and all(self._ranks.values()):
            self._join([self._ranks[n].popleft() for n in sorted(self._ranks)])
        self._news.set()

    def _join(self, packets: Sequence[dict[str, Any]]) -> None:
        first, heads = packets[0], [packet.get("heads", 1) for packet in packets]
        if "number" in first:  # every rank has all logits
            entropy, logprob = floats(first["number"]).tolist()
            self.numbers.append((entropy, logprob))
        if "row" in first:
            self.rows.append(joined([packet["row"] for packet in packets], heads))
        if "means" in first:
            means = floats(joined([packet["means"] for packet in packets], heads))
            self.updates.append(changed_maxima(self.means, means))
            self.means = means
        for place in first.get("rows", ()):
            self.rows_at[int(place)] = joined([packet["rows"][place] for packet in packets], heads)

    def take(self) -> tuple[list[tuple[float, float]], list[Sequence[Maximum]], list[str]]:
        """Return the numbers, updates and rows since the last call. Raises SignalsLost."""
        self._news.clear()
        if self._error is not None:
            raise SignalsLost(self._error)
        taken = self.numbers, self.updates, self.rows
        self.numbers, self.updates, self.rows = [], [], []
        return taken

    async def wait(self) -> None:
        """Wait for the next packet. Raises SignalsLost."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._news.wait()
        except TimeoutError:
            raise SignalsLost(SILENT) from None


class Receiver:
    """The open calls of this process, and the socket to which workers send their signals."""

    def __init__(self) -> None:
        self.calls: dict[str, Inbox] = {}
        self.held: dict[int, int] = {}  # other calls that the ranks kept when they last sent
        self._ended: list[str] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def open(self, call: str) -> tuple[str, Inbox]:
        """Open a call. Return the socket's address, which only this user can reach, and the inbox.

        Raises SignalsLost.
        """
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="revelator-")
            try:
                self._server = await asyncio.start_unix_server(self._serve, self._address)
            except OSError as error:
                self._folder = None
                raise SignalsLost(f"no socket for the workers: {error}; check TMPDIR") from None
        inbox = self.calls[call] = Inbox()
        inbox.ended, self._ended = tuple(self._ended), []
        return self._address, inbox

    def close(self, call: str) -> None:
        """Forget a call, here and, when the next one begins, on the workers, of which one may have
        begun it although nothing of it has arrived."""
        inbox = self.calls.pop(call)
        self._ended += [call, *(() if inbox.begun else inbox.ended)]

    async def aclose(self) -> None:
        """Close and remove the socket; the next call has another."""
        if self._server is not None and self._folder is not None:
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections)
            self._folder.cleanup()
        self._server = self._folder = None

    @property
    def _address(self) -> str:
        assert self._folder is not None
        return str(Path(self._folder.name) / "signals")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                packet = json.loads(await reader.readexactly(size))
                self.held[packet["rank"][0]] = packet["held"]
                if (inbox := self.calls.get(packet["call"])) is not None:
                    inbox.put(packet)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # cancelled by `aclose`, or with the event loop
        finally:
            writer.close()


def floats(text: str) -> Floats:
    return np.frombuffer(base64.b64decode(text), np.float32)


def joined(of_ranks: Sequence[str], heads: Sequence[int]) -> str:
    """Return the mean over all heads, from every rank's mean over its own."""
    if len(of_ranks) == 1:
        return of_ranks[0]
    arrays = np.stack([floats(text) for text in of_ranks])
    mean = np.average(arrays, axis=0, weights=heads).astype(np.float32)
    return base64.b64encode(mean.tobytes()).decode()


RECEIVER = Receiver()  # vLLM makes the middleware itself, and asks the logits processors here
