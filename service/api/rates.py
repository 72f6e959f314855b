"""Requests and questions per minute for each tenant, and their header fields.

The fields are those of the IETF draft "RateLimit header fields for HTTP"
(draft-ietf-httpapi-ratelimit-headers-10): `RateLimit-Policy` states the quota, `RateLimit` the
remainder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from service.api.tenants import Tenant
from service.core.errors import RevelatorError

WINDOW_S: Final = 60.0
MOST_BUCKETS: Final = 1_000  # buckets before full ones are removed


class RateLimited(RevelatorError):
    slug, title, status = "rate-limited", "Too many requests for this key", 429

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Quota:
    """The remainder of a quota. `reset_s`: seconds until one more unit is available."""

    name: str
    quota: int
    allowed: bool
    remaining: int
    reset_s: float

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.quota};w={WINDOW_S:.0f}',
            "RateLimit": f'"{self.name}";r={self.remaining};t={math.ceil(self.reset_s)}',
        }


class Bucket:
    """A token bucket that holds a minute's quota and is refilled evenly. The caller passes the
    time.
    """

    def __init__(self, name: str, quota: int) -> None:
        self.name, self.quota = name, quota
        self._level = float(quota)
        self._at = -math.inf

    def take(self, now: float) -> Quota:
        """Take one unit, if there is one. `now` in seconds, never smaller than before."""
        rate = self.quota / WINDOW_S
        self._level, self._at = self._filled(now), now
        allowed = self._level >= 1.0
        self._level -= allowed
        lacking = max(0.0, math.floor(self._level) + 1 - self._level)
        return Quota(self.name, self.quota, allowed, int(self._level), lacking / rate)

    def full(self, now: float) -> bool:
        """Whether it holds the whole quota, like a new one."""
        return self._filled(now) >= self.quota

    def _filled(self, now: float) -> float:
        return min(float(self.quota), self._level + self.quota / WINDOW_S * (now - self._at))


class Rates:
    """The buckets of all tenants. One process has its own; see `deploy/README.md`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._most = MOST_BUCKETS

    def __len__(self) -> int:
        return len(self._buckets)

    def request(self, tenant: Tenant) -> Quota | None:
        """Count a request. Returns the remaining quota, or None if the tenant has no limit."""
        return self._take(tenant, "requests", tenant.requests_per_minute)

    def question(self, tenant: Tenant) -> Quota | None:
        """Count a question, as `request` does."""
        return self._take(tenant, "questions", tenant.questions_per_minute)

    def _take(self, tenant: Tenant, name: str, quota: int | None) -> Quota | None:
        if quota is None:
            return None
        key = (tenant.name, name)
        bucket = self._buckets.get(key)
        if bucket is None or bucket.quota != quota:
            self._forget_full()
            bucket = self._buckets[key] = Bucket(name, quota)
        return bucket.take(self._clock())

    def _forget_full(self) -> None:
        """Remove full buckets. Tokens may name any number of tenants, so only buckets in use are
        kept.
        """
        if len(self._buckets) >= self._most:
            now = self._clock()
            self._buckets = {key: each for key, each in self._buckets.items() if not each.full(now)}
            self._most = max(MOST_BUCKETS, 2 * len(self._buckets))


def refuse(quota: Quota) -> RateLimited:
    """Return the error for a quota that is used up."""
    wait = max(1, math.ceil(quota.reset_s))
    return RateLimited(
        f"This key may send {quota.quota} {quota.name} a minute. Try again in {wait} s.", wait
    )
