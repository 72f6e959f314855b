"""Retries of calls that may be repeated: searches and embeddings, never writes.

Pauses have full jitter, so that those who failed together do not come back together (Brooker,
Exponential Backoff And Jitter, AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from service.core.errors import BackendUnavailable

FIRST_PAUSE_S = 0.05  # at most; doubles with every try
LONGEST_PAUSE_S = 1.0

Result = TypeVar("Result")


def pause_s(turn: int, share: float) -> float:
    """Return the pause before retry `turn` + 1: a `share`, 0 to 1, of the longest one."""
    return share * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**turn)


async def retrying(
    call: Callable[[], Awaitable[Result]],
    retries: int,
    until: float,
    on_retry: Callable[[], None],
) -> Result:
    """Return the result of the first call that does not fail with BackendUnavailable.

    Raises the last failure after `retries` more tries, or where the pause would end after `until`
    (of `time.monotonic`).
    """
    for turn in range(retries):
        try:
            return await call()
        except BackendUnavailable:
            pause = pause_s(turn, random.random())
            if time.monotonic() + pause >= until:
                raise
        on_retry()
        await asyncio.sleep(pause)
    return await call()
