"""API keys, and where the server may listen without them."""

from __future__ import annotations

import hmac
import ipaddress

from fastapi import Request

from service.api.problems import KeyMissing, KeyRefused
from service.core.errors import ConfigurationError
from service.core.settings import ServerSettings, Settings


def check_exposure(settings: ServerSettings) -> None:
    """Raise ConfigurationError for a host other than loopback without keys, unless `insecure` is
    set."""
    if settings.keys or settings.insecure or is_loopback(settings.host):
        return
    raise ConfigurationError(
        f"server.host {settings.host!r} can be reached from other machines. Set server.keys, or "
        "pass --insecure to allow requests without a key."
    )


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached only from this machine. Names other than localhost count as
    not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def require_key(request: Request) -> None:
    """Dependency: check the key in `Authorization: Bearer` or `X-API-Key`, if keys are
    configured."""
    settings: Settings = request.app.state.settings
    keys = settings.server.keys
    if not keys:
        return
    given = _given(request)
    if given is None:
        raise KeyMissing("Send an API key as `Authorization: Bearer …` or `X-API-Key: …`.")
    matches = [hmac.compare_digest(key.get_secret_value().encode(), given) for key in keys]
    if not any(matches):
        raise KeyRefused("The API key is not one of this server's keys.")


def _given(request: Request) -> bytes | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().encode()
    other = request.headers.get("X-API-Key", "").strip()
    return other.encode() if other else None
