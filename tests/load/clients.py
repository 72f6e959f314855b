"""Clients of the load programs: questions sent at a stated rate, whatever becomes of them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

BODY = {"question": "Who composed Norma?", "route": "direct"}
TIMEOUT = aiohttp.ClientTimeout(total=120)


@dataclass(frozen=True)
class Sent:
    """One question: when it was due, how long its response took, and its status (0: none)."""

    tenant: str
    seconds: float
    status: int
    retry_after: bool = False


async def ask(http: aiohttp.ClientSession, tenant: str = "") -> Sent:
    headers = {"Authorization": f"Bearer {tenant}"} if tenant else {}
    return await post(http, "/answer", BODY, tenant, headers)


async def post(
    http: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    tenant: str,
    headers: Mapping[str, str] | None = None,
) -> Sent:
    """Send a body as JSON, and read the whole response."""
    since = time.perf_counter()
    try:
        async with http.post(url, json=body, headers=headers) as response:
            await response.read()
            told = "Retry-After" in response.headers
            return Sent(tenant, time.perf_counter() - since, response.status, told)
    except (aiohttp.ClientError, TimeoutError):
        return Sent(tenant, time.perf_counter() - since, 0)


Ask = Callable[[aiohttp.ClientSession, str], Awaitable[Sent]]


async def offer(
    http: aiohttp.ClientSession,
    rates: Mapping[str, float],
    for_s: float,
    ask: Ask = ask,
    chance: Random | None = None,
) -> list[Sent]:
    """Questions of each tenant at its rate (a second), evenly or, given a `chance`, at random times
    (a Poisson process), for so long; all that was sent."""

    async def of(tenant: str, rate: float) -> list[asyncio.Future[Sent]]:
        tasks: list[asyncio.Future[Sent]] = []
        due = time.perf_counter()
        for _ in range(round(rate * for_s)):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.ensure_future(ask(http, tenant)))
            due += chance.expovariate(rate) if chance else 1 / rate
        return tasks

    lanes = await asyncio.gather(*(of(tenant, rate) for tenant, rate in rates.items()))
    return [await task for lane in lanes for task in lane]


def quantile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def took(sent: Sequence[Sent], share: float, *statuses: int) -> float:
    """The quantile of the seconds of those with such a status."""
    values = [each.seconds for each in sent if each.status in statuses]
    return quantile(values, share) if len(values) > 1 else sum(values)
