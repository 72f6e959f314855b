"""Who may use this server: keys with a name, rights, collections and rates.

A tenants file (`server.tenants_file`, TOML) names each tenant and holds SHA-256 digests of its
keys, never the keys. `revelator key NAME` makes a key and the entry for it:

    [[tenants]]
    name = "search-team"
    key_sha256 = ["…"]            # several while a key is rotated
    collections = ["docs", "faq-*"]
    rights = ["ask", "write"]     # and "administer"
    requests_per_minute = 600
    questions_per_minute = 60

The keys of `server.keys` belong to one more tenant, which may do everything.
"""

from __future__ import annotations

import hashlib
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from service.core.errors import ConfigurationError
from service.core.settings.base import Rate

Right = Literal["ask", "write", "administer"]
RIGHTS: Final[tuple[Right, ...]] = ("ask", "write", "administer")
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
LARGEST_FILE: Final = 4_000_000  # bytes of a tenants file
KEY_BYTES: Final = 32  # random bytes of a new key

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Tenant(BaseModel):
    """A client of the server. `collections` are names, or patterns with `*` and `?`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, StringConstraints(pattern=NAME)]
    key_sha256: list[Digest] = []
    collections: list[Annotated[str, Field(min_length=1, max_length=200)]] = ["*"]
    rights: list[Right] = ["ask"]
    requests_per_minute: Rate | None = None
    questions_per_minute: Rate | None = None

    def may(self, right: Right) -> bool:
        return right in self.rights

    def may_use(self, collection: str) -> bool:
        return any(fnmatchcase(collection, pattern) for pattern in self.collections)


# The tenant of the keys in `server.keys`, and of a server without keys.
OWNER: Final = Tenant(name="default", rights=list(RIGHTS))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tenants: list[Tenant] = []


class KeyRing:
    """Tenants by the digests of their keys. Immutable.

    Keys are looked up by digest, so that the time of a lookup reveals nothing about a key. A plain
    digest is sufficient for keys of 256 random bits, which people do not choose.
    """

    def __init__(self, keys: Iterable[str] = (), tenants: Iterable[Tenant] = ()) -> None:
        self._tenants: dict[str, Tenant] = {digest(key.encode()): OWNER for key in keys}
        for tenant in tenants:
            self._tenants.update(dict.fromkeys(tenant.key_sha256, tenant))

    def __len__(self) -> int:
        return len(self._tenants)

    def find(self, key: bytes) -> Tenant | None:
        """Return the tenant of a key, or None for an unknown key."""
        return self._tenants.get(digest(key))


def digest(key: bytes) -> str:
    """Return the SHA-256 digest of a key, in hexadecimal."""
    return hashlib.sha256(key).hexdigest()


def new_key() -> str:
    """Return a new random key of 256 bits."""
    return f"rv_{secrets.token_urlsafe(KEY_BYTES)}"


def read_tenants(path: Path) -> list[Tenant]:
    """Read a tenants file. Raises ConfigurationError, which names the file and the entry."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(
            f"server.tenants_file: {path} cannot be read: {error.strerror}."
        ) from None
    if len(content) > LARGEST_FILE:
        raise ConfigurationError(f"server.tenants_file: {path} is larger than 4 MB.")
    try:
        return parse_tenants(content.decode())
    except ValueError as error:
        raise ConfigurationError(f"server.tenants_file: {path}: {error}") from None


def parse_tenants(text: str) -> list[Tenant]:
    """Parse a tenants file. Raises ValueError, which names the entry and never shows a digest."""
    table = tomllib.loads(text)
    try:
        tenants = _File.model_validate(table).tenants
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        lines = [f"{_entry(table, problem['loc'])}{problem['msg']}" for problem in problems[:5]]
        raise ValueError("; ".join(lines)) from None
    _refuse_repeated(tenants)
    return tenants


def _entry(table: Mapping[str, object], place: tuple[int | str, ...]) -> str:
    """Return the place of an entry, such as `tenants.3 (search-team).rights.0: `."""
    shown = [str(part) for part in place]
    entries = table.get("tenants")
    if len(place) > 1 and isinstance(place[1], int) and isinstance(entries, list):
        entry = entries[place[1]]
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            shown[1] += f" ({entry['name'][:64]})"
    return ".".join(shown) + ": "


def _refuse_repeated(tenants: Iterable[Tenant]) -> None:
    names: set[str] = {OWNER.name}
    owners: dict[str, str] = {}
    for tenant in tenants:
        if tenant.name in names:
            reason = "is reserved" if tenant.name == OWNER.name else "appears twice"
            raise ValueError(f"the name {tenant.name!r} {reason}; each tenant needs its own name")
        names.add(tenant.name)
        for each in tenant.key_sha256:
            if other := owners.get(each):
                raise ValueError(f"{other!r} and {tenant.name!r} have the same key; make a new one")
            owners[each] = tenant.name
