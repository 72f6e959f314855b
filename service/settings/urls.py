"""URLs that may hold credentials: read by one function, shown by one function.

The one place where a URL is taken apart, so that nothing prints a secret. A key with `/`, `?`, `#`
or `@` in it is accepted as it is or percent-encoded: all before the last `@` are the credentials.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from pydantic import SecretStr

HIDDEN: Final = "***"
SHORTEST: Final = 4  # characters; hiding fewer would hide half of every message


@dataclass(frozen=True, slots=True)
class Address:
    """A URL without its credentials, and these, decoded; empty where there are none."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def has_login(self) -> bool:
        return bool(self.user or self.password)


def address_of(url: str) -> Address:
    """Take a URL apart. What has no scheme is taken for what would follow one."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    login, _, place = rest.rpartition("@")
    user, _, password = login.partition(":")
    return Address(f"{scheme}{mark}{place}", unquote(user), unquote(password))


def shown(url: str) -> str:
    """A URL for messages: without credentials and query."""
    return address_of(url).url.partition("?")[0].partition("#")[0]


def encoded(url: str) -> str:
    """A URL whose credentials any HTTP client reads as they were meant."""
    address = address_of(url)
    if not address.has_login:
        return address.url
    scheme, mark, place = address.url.partition("://")
    login = f"{quote(address.user, safe='')}:{quote(address.password, safe='')}"
    return f"{scheme}{mark}{login}@{place}"


def checked(url: str) -> str:
    """As `encoded`, without a slash at its end. Raises ValueError for another scheme than HTTP."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{shown(url)!r} is not an http:// or https:// URL")
    return encoded(url).rstrip("/")


def authorization(url: str, key: SecretStr | None) -> dict[str, str]:
    """The header that goes to the server at `url`: its bearer key, else the URL's credentials."""
    if key is not None:
        return {"Authorization": f"Bearer {key.get_secret_value()}"}
    address = address_of(url)
    if not address.has_login:
        return {}
    return {"Authorization": f"Basic {basic(address.user, address.password)}"}


def basic(user: str, password: str) -> str:
    """Both as HTTP's basic authentication sends them."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def secrets_of(url: str, key: SecretStr | None) -> tuple[str, ...]:
    """What a server at `url` gets to see that nobody else may, in each form that it is sent in."""
    address = address_of(url)
    own = (key.get_secret_value(),) if key is not None else ()
    return (*own, address.password, basic(address.user, address.password))


def without(text: str, secrets: Iterable[str]) -> str:
    """What a server or a client said, without the secrets that it may repeat."""
    for secret in secrets:
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN).replace(quote(secret, safe=""), HIDDEN)
    return text


def read_secret(path: Path) -> str:
    """The content of a file that holds one secret, without space around it. Raises ValueError."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"{path} cannot be read: {why}") from None
    if not secret:
        raise ValueError(f"{path} is empty; it should hold the secret")
    return secret
