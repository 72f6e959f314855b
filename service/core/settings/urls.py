"""URLs that may contain credentials: parsing them, and showing them without credentials.

All URLs are parsed here, so that no message prints a secret. Everything before the last `@` is the
credentials; a key that contains `/`, `?`, `#` or `@` may be percent-encoded or not.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from pydantic import SecretStr

HIDDEN: Final = "***"
PORTS: Final = {"http": ":80", "https": ":443"}  # that browsers leave out of origins
SHORTEST: Final = 4  # characters; hiding fewer would hide half of every message


@dataclass(frozen=True, slots=True)
class Address:
    """A URL without its credentials, and these decoded, or empty if there are none."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def has_login(self) -> bool:
        return bool(self.user or self.password)


def address_of(url: str) -> Address:
    """Parse a URL. Text without a scheme is treated like the part after a scheme."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    login, _, place = rest.rpartition("@")
    user, _, password = login.partition(":")
    return Address(f"{scheme}{mark}{place}", unquote(user), unquote(password))


def shown(url: str) -> str:
    """Return the URL for messages, without credentials and query."""
    return address_of(url).url.partition("?")[0].partition("#")[0]


def encoded(url: str) -> str:
    """Return the URL with percent-encoded credentials, which every HTTP client reads correctly."""
    address = address_of(url)
    if not address.has_login:
        return address.url
    scheme, mark, place = address.url.partition("://")
    login = f"{quote(address.user, safe='')}:{quote(address.password, safe='')}"
    return f"{scheme}{mark}{login}@{place}"


def checked(url: str) -> str:
    """Return the encoded URL without a trailing slash. Raises ValueError if it is not HTTP."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{shown(url)!r} is not an http:// or https:// URL")
    return encoded(url).rstrip("/")


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL as browsers write an origin: in lower case, without the
    scheme's own port. Text that is no URL is returned as it is."""
    scheme, mark, rest = url.lower().partition("://")
    if not mark:
        return url
    place = rest.partition("/")[0]
    return f"{scheme}://{place.removesuffix(PORTS.get(scheme, ' '))}"


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached only from this machine. Names other than localhost do not
    count.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def authorization(url: str, key: SecretStr | None) -> dict[str, str]:
    """Return the authorization header for `url`: the bearer key, else the URL's credentials."""
    if key is not None:
        return {"Authorization": f"Bearer {key.get_secret_value()}"}
    address = address_of(url)
    if not address.has_login:
        return {}
    return {"Authorization": f"Basic {basic(address.user, address.password)}"}


def basic(user: str, password: str) -> str:
    """Encode user and password for HTTP basic authentication."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def secrets_of(url: str, key: SecretStr | None) -> tuple[str, ...]:
    """Return the secrets of `url` in every form in which they are sent."""
    address = address_of(url)
    keys = (key.get_secret_value(),) if key is not None else ()
    return (*keys, address.password, basic(address.user, address.password))


def without(text: str, secrets: Iterable[str]) -> str:
    """Remove the secrets from a message of a server or client, which may repeat them."""
    for secret in secrets:
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN).replace(quote(secret, safe=""), HIDDEN)
    return text


def read_secret(path: Path) -> str:
    """Read a file that contains one secret, and strip white space. Raises ValueError."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"{path} cannot be read: {why}") from None
    if not secret:
        raise ValueError(f"{path} is empty; write the secret into it")
    return secret
