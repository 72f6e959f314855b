"""Authorisation: keys, rights, rates, and the hosts on which the server may listen without keys.

The header fields of rates are those of the IETF draft "RateLimit header fields for HTTP"
(draft-ietf-httpapi-ratelimit-headers-10): `RateLimit-Policy` states the quota, `RateLimit` the
remainder.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

import anyio
import structlog
from fastapi import Request

from service.api.edge import edge_of
from service.api.tenants import (
    MOST_PRINCIPALS,
    OWNER,
    TOKEN,
    TOO_MANY,
    Right,
    Tenant,
    Tokens,
    by_key,
    digest,
    read_tenants,
)
from service.api.wire import (
    CROSS_SITE,
    KEY_MISSING,
    KEY_REFUSED,
    MALFORMED_REQUEST,
    RATE_LIMITED,
    Refusal,
)
from service.core.errors import ConfigurationError, RevelatorError
from service.core.settings import ServerSettings
from service.core.settings.urls import is_loopback, origin_of
from service.retrieval.base import EVERYTHING, NOBODY, Principals

Counted = Literal["requests", "questions"]
WINDOW_S: Final = 60.0
MOST_BUCKETS: Final = 1_000  # buckets before full ones are removed


class Taken(NamedTuple):
    """What taking a unit of a quota found: whether there was one, how many are left, and the
    seconds until one more is available."""

    name: Counted
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

    @property
    def refusal(self) -> Refusal:
        """The error for a quota that is used up."""
        wait = max(1, math.ceil(self.reset_s))
        return Refusal(
            RATE_LIMITED,
            f"This key may send {self.quota} {self.name} a minute. Try again in {wait} s.",
            wait,
        )


class Rates:
    """Token buckets, which hold a minute's quota and are refilled evenly; a bucket is the time at
    which it is full again. One process has its own; see `deploy/README.md`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[tuple[str, Counted, int], float] = {}
        self._most = MOST_BUCKETS

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, tenant: Tenant, name: Counted) -> Taken | None:
        """Count a request or a question. Returns None if the tenant has no limit."""
        quotas = {"requests": tenant.requests_per_minute, "questions": tenant.questions_per_minute}
        quota = quotas[name]
        if quota is None:
            return None
        now, unit_s = self._clock(), WINDOW_S / quota
        key = (tenant.name, name, quota)
        if key not in self._full_at:
            self._forget_full(now)
        full_at = max(now, self._full_at.get(key, now))
        level = quota - (full_at - now) / unit_s + 1e-9
        if allowed := level >= 1:
            full_at, level = full_at + unit_s, level - 1
        self._full_at[key] = full_at
        left = int(level)
        return Taken(name, quota, allowed, left, max(0.0, left + 1 - level) * unit_s)

    def _forget_full(self, now: float) -> None:
        """Remove full buckets. Tokens may name any number of tenants, so only buckets in use are
        kept.
        """
        if len(self._full_at) >= self._most:
            self._full_at = {key: at for key, at in self._full_at.items() if at > now}
            self._most = max(MOST_BUCKETS, 2 * len(self._full_at))


log = structlog.get_logger(__name__)

PROBES: Final = frozenset({"/healthz", "/readyz", "/startupz", "/metrics"})
# Paths at which every request is a question.
ASKING: Final = frozenset(["/answer", "/answer/stream", "/v1/chat/completions", "/v1/responses"])
LOOK_S: Final = 1.0  # seconds between checks of the tenants file


def check_exposure(settings: ServerSettings) -> None:
    """Raise ConfigurationError for a host other than loopback without keys, unless `insecure` is
    set."""
    if settings.has_keys or settings.insecure or is_loopback(settings.host):
        return
    raise ConfigurationError(
        f"server.host {settings.host!r} can be reached from other machines. Set server.keys, "
        "server.tenants_file or server.oidc, or pass --insecure to allow requests without a key."
    )


def hostname(host: str) -> str:
    """Return the name or address in a header `Host`, in lower case; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class TenantAccess:
    """The tenants of this server and their rates. `watch` follows changes of the tenants file.

    `local`: whoever can reach the server may do everything, since that is this machine alone.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Read the tenants file. Raises ConfigurationError, also if tokens are configured and the
        extra `oidc` is not installed.
        """
        self._keys = [key.get_secret_value() for key in settings.keys]
        self._path = settings.tenants_file
        self._open = not settings.has_keys
        self.local = self._open and not settings.insecure and is_loopback(settings.host)
        self._tokens = Tokens(settings.oidc) if settings.oidc.enabled else None
        self._rates = Rates()
        self._version = _version(self._path)
        self._tenants = by_key(self._keys, read_tenants(self._path) if self._path else ())

    async def tenant(self, key: bytes | None) -> Tenant:
        """Return the tenant of a key or token. Raises KEY_MISSING, KEY_REFUSED, TOKEN_REFUSED or
        ISSUER_UNAVAILABLE.
        """
        if self._open:
            return OWNER
        if key is None:
            raise Refusal(
                KEY_MISSING, "Send an API key as `Authorization: Bearer …` or `X-API-Key: …`."
            )
        tenant = self._tenants.get(digest(key))
        if tenant is not None:
            return tenant
        if self._tokens is not None and TOKEN.fullmatch(key):
            return await self._tokens.tenant(key)
        raise Refusal(KEY_REFUSED, "The API key is not one of this server's keys.")

    def count(self, request: Request, name: Counted) -> None:
        """Count a request or a question of the tenant that sent the request, and report the
        remaining quota in the response's headers. Raises RATE_LIMITED."""
        taken = self._rates.take(tenant_of(request), name)
        if taken is None:
            return
        headers: dict[str, str] = getattr(request.state, "response_headers", {})
        for field, value in taken.headers.items():
            headers[field] = f"{headers[field]}, {value}" if field in headers else value
        request.state.response_headers = headers
        if taken.allowed:
            return
        if name == "questions" or request.url.path in ASKING:
            edge_of(request).runtime.metrics.rejected("key_limit")
        raise taken.refusal

    async def watch(self) -> None:
        """Read the tenants file again whenever it changes, until cancelled.

        If a file is missing or not valid, this is logged, and the previous tenants stay.
        """
        while self._path is not None:
            await asyncio.sleep(LOOK_S)
            version = await anyio.to_thread.run_sync(_version, self._path)
            if version not in (None, self._version):
                self._version = version
                await self._read(self._path)

    async def _read(self, path: Path) -> None:
        try:
            tenants = await anyio.to_thread.run_sync(read_tenants, path)
        except ConfigurationError as error:
            log.error(
                "tenants file could not be reloaded; the previous tenants remain valid",
                reason=error.detail,
            )
            return
        self._tenants = by_key(self._keys, tenants)
        log.info("tenants file reloaded", tenants=len(tenants))


def _version(path: Path | None) -> tuple[int, int, int] | None:
    """Return a value that changes when the file is written or replaced. Kubernetes replaces a link
    to it.
    """
    try:
        status = path.stat() if path else None
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status else None


def require(right: Right) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that admits only tenants with this right, to the collections that they
    may use. It raises CROSS_SITE, RATE_LIMITED, NOT_ALLOWED, and the errors of
    `TenantAccess.tenant`.
    """

    async def check(request: Request) -> None:
        tenant = await authenticate(request)
        tenant.check(right)
        name = request.path_params.get("name")
        if name is not None:
            tenant.check_collection(name)

    return check


async def authenticate(request: Request) -> Tenant:
    """Return the tenant that sent the request, and count the request. Raises CROSS_SITE,
    RATE_LIMITED, and the errors of `TenantAccess.tenant`.
    """
    check_origin(request)
    access = edge_of(request).access
    tenant = await access.tenant(_given(request))
    principals = _principals(request, access, tenant)
    if principals != tenant.principals:
        tenant = tenant.model_copy(update={"principals": principals})
    request.state.tenant = tenant
    structlog.contextvars.bind_contextvars(tenant=tenant.name)
    access.count(request, "requests")
    return tenant


async def own_host(request: Request) -> None:
    """Dependency: raise CROSS_SITE if the server is this machine's alone and the header `Host`
    names another one. Probes come by any address.

    To a browser, a page of `evil.example` is of the same origin as this server once that name is
    made to mean 127.0.0.1 (DNS rebinding).
    """
    host = request.headers.get("host", "")
    name, settings = hostname(host), edge_of(request).settings.server
    if not edge_of(request).access.local or request.url.path in PROBES:
        return
    if is_loopback(name) or (
        settings.public_url and name == hostname(settings.public_url.partition("://")[2])
    ):
        return
    raise Refusal(
        CROSS_SITE,
        "This server has no keys, so it accepts only requests whose Host header is localhost or a "
        f"loopback address, not {host[:80]!r}. Use http://127.0.0.1 with the server's port, name "
        "it in server.public_url, set server.keys, or start the server with --insecure.",
    )


def check_origin(request: Request) -> None:
    """Raise CROSS_SITE if a web page of another origin sent the request. Browsers send `Origin`, or
    say in `Sec-Fetch-Site` where the page is from; both are beyond the reach of pages."""
    origin, settings = request.headers.get("origin"), edge_of(request).settings.server
    if origin is None:
        foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
    else:
        address = f"{origin.partition(':')[0]}://{request.headers.get('host', '')}"
        known = [address, settings.public_url or address, *settings.cors_origins]
        foreign = origin_of(origin) not in map(origin_of, known)
    if foreign:
        raise Refusal(
            CROSS_SITE,
            "A web page of another origin sent this request, which is not allowed. Send it from "
            "that page's server instead of the browser, or add the page's origin to "
            "server.cors_origins, or the address of this server's own page behind a proxy as "
            "server.public_url.",
        )


async def visible_to(request: Request) -> Callable[[str], bool]:
    """Return whether the sender may know of a collection: of none without a key, where there are
    keys."""
    try:
        return (await edge_of(request).access.tenant(_given(request))).may_use
    except RevelatorError:
        return lambda _: False


def tenant_of(request: Request) -> Tenant:
    """Return the tenant that sent the request, as determined by `authenticate`. Its principals are
    those of the sender."""
    tenant: Tenant = request.state.tenant
    return tenant


def _principals(request: Request, access: TenantAccess, tenant: Tenant) -> Principals:
    """Return the principals of the sender. With `server.principals_header`, a tenant that sees
    everything, and anybody where there are no keys, is a gateway that names those of its user: the
    header narrows what is seen, and can never widen it. Raises MALFORMED_REQUEST."""
    settings = edge_of(request).settings.server
    header, given = settings.principals_header, tenant.principals
    if not given >= EVERYTHING:
        return given
    if header is None:  # without keys, whoever reaches the server is known only on this machine
        return given if access.local or settings.has_keys else NOBODY
    value = ",".join(request.headers.getlist(header))
    if len(value) > MOST_PRINCIPALS:
        raise Refusal(
            MALFORMED_REQUEST,
            f"The header {header} has {len(value):,} characters, but {TOO_MANY}.",
        )
    try:
        named = value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Refusal(MALFORMED_REQUEST, f"The header {header} is not valid UTF-8.") from None
    return frozenset(filter(None, map(str.strip, named.split(",")))) - EVERYTHING


def _given(request: Request) -> bytes | None:
    """Return the bytes of the key or token that was sent, None without one."""
    # Starlette decodes headers as Latin-1, but clients send keys in UTF-8.
    authorization = request.headers.get("Authorization", "").encode("latin-1")
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return request.headers.get("X-API-Key", "").encode("latin-1").strip() or None
