"""Who may ask: API keys, and where the server may listen without them."""

from __future__ import annotations

import hmac
import ipaddress

from fastapi import Request

from service.api.problems import KeyMissing, KeyRefused
from service.errors import ConfigurationError
from service.settings import ServerSettings, Settings


def check_exposure(settings: ServerSettings) -> None:
    """Raise ConfigurationError where strangers could ask: no loopback, no keys, not `insecure`."""
    if settings.keys or settings.insecure or is_loopback(settings.host):
        return
    raise ConfigurationError(
        f"server.host {settings.host!r} can be reached from other machines: set server.keys, "
        "or allow anyone to ask with --insecure"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; another name than localhost counts as not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def require_key(request: Request) -> None:
    """Dependency: a valid key by `Authorization: Bearer` or `X-API-Key`, where keys are set."""
    settings: Settings = request.app.state.settings
    keys = settings.server.keys
    if not keys:
        return
    given = _given(request)
    if given is None:
        raise KeyMissing("send a key as `Authorization: Bearer …` or `X-API-Key: …`")
    matches = [hmac.compare_digest(key.get_secret_value().encode(), given) for key in keys]
    if not any(matches):
        raise KeyRefused("the key sent is not one of this server's")


def _given(request: Request) -> bytes | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().encode()
    other = request.headers.get("X-API-Key", "").strip()
    return other.encode() if other else None
