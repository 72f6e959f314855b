"""Sends what a worker has of its calls to the API servers that asked, from a thread of its own.

So no step waits for a copy from the device, or for a socket. A packet is its length in four bytes,
then JSON: `call`, `rank` (of how many), `held` (the number of calls kept that are not in this step)
and what a step gave: `number` (entropy and log-probability of the next token), `row` and `means`
(see `tap.Tracked`), `rows` by position, or `error`. Arrays are the base64 of float32 values. Means
and rows are those over the rank's `heads`.
"""

from __future__ import annotations

import base64
import json
import socket
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

NOT_FINITE = "the model's attention or logits are not finite (NaN): check its weights and dtype"
Packet = dict[str, Any]


class Sender:
    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[str, Any, Packet] | None] = SimpleQueue()
        self._sockets: dict[str, socket.socket] = {}
        self._thread: Thread | None = None

    def put(self, address: str, packet: Packet) -> None:
        """Send a packet, once the device has computed it."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="revelator-signals", daemon=True)
            self._thread.start()
        self._queue.put((address, _computed(), packet))

    def close(self) -> None:
        """End the thread, after what was put before."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            address, computed, packet = queued
            if computed is not None:
                computed.synchronize()
            data = encoded(packet)
            try:
                self._socket(address).sendall(len(data).to_bytes(4, "big") + data)
            except OSError:  # the API server is gone, or elsewhere: it says so to its client
                self._sockets.pop(address).close()
        for opened in self._sockets.values():
            opened.close()

    def _socket(self, address: str) -> socket.socket:
        if address not in self._sockets:
            self._sockets[address] = socket.socket(socket.AF_UNIX)
            self._sockets[address].connect(address)
        return self._sockets[address]


def _computed() -> Any:
    """Return what to wait for before tensors can be read elsewhere; None on a CPU."""
    if (device := _accelerator()) is None:
        return None
    event = torch.Event(device)
    event.record()
    return event


@cache  # torch looks for a driver at each call
def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator(check_available=True)


def encoded(packet: Packet) -> bytes:
    """Return a packet as JSON; without its arrays, and with an error, if one is not a number."""
    try:
        return json.dumps(packet, default=_text).encode()
    except ArithmeticError as error:
        rest = {name: packet[name] for name in ("call", "rank", "held")}
        return json.dumps(rest | {"error": str(error)}).encode()


def _text(array: Tensor) -> str:
    values = array.detach().float().cpu().numpy()
    if np.isnan(values).any():
        raise ArithmeticError(NOT_FINITE)
    return base64.b64encode(values.tobytes()).decode()
