"""Who may use this server: keys with a name, rights, collections and rates.

A tenants file (`server.tenants_file`, TOML) names each tenant and holds SHA-256 digests of its
keys, never the keys. `revelator key NAME` makes a key and the entry for it:

    [[tenants]]
    name = "search-team"
    key_sha256 = ["…"]            # several while a key is rotated
    collections = ["docs", "faq-*"]
    principals = ["sales"]        # sees documents whose `access` names one; "*": all documents
    rights = ["ask", "write"]     # and "administer"
    requests_per_minute = 600
    questions_per_minute = 60

The keys of `server.keys` belong to one more tenant, which may do everything.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio
import anyio.to_thread
import structlog
from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
)

from service.api.wire import ISSUER_UNAVAILABLE, NOT_ALLOWED, TOKEN_REFUSED, Refusal
from service.core.concurrency import retrieve
from service.core.connections import tls_context
from service.core.errors import ConfigurationError, InvalidRequest
from service.core.extras import importing
from service.core.settings.base import Rate
from service.core.settings.server import OidcSettings
from service.core.validation import Strict, parse
from service.retrieval.base import EVERYTHING, NOBODY, Principals

if TYPE_CHECKING:
    from jwt import PyJWK


Right = Literal["ask", "write", "administer"]
RIGHTS: Final[tuple[Right, ...]] = ("ask", "write", "administer")
LARGEST_FILE: Final = 4_000_000  # bytes of a tenants file
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
KEY_BYTES: Final = 32  # random bytes of a new key
MOST_PRINCIPALS: Final = 8_000  # characters of all principals of a caller; a search sends them
TOO_MANY: Final = (
    f"the names of the principals have more than {MOST_PRINCIPALS:,} characters together; name "
    "only the groups that documents name in `access`"
)

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _not_too_long(principals: Principals) -> Principals:
    if (size := sum(map(len, principals))) > MOST_PRINCIPALS:
        raise ValueError(f"{TOO_MANY}; these have {size:,}")
    return principals


class Tenant(Strict):
    """A client of the server. `collections` are names, or patterns with `*` and `?`. Of documents
    with `access`, it sees those that name one of its `principals`."""

    name: Annotated[str, StringConstraints(pattern=NAME)]
    key_sha256: list[Digest] = []
    collections: list[Annotated[str, Field(min_length=1, max_length=200)]] = ["*"]
    rights: list[Right] = ["ask"]
    principals: Annotated[Principals, Field(strict=False), AfterValidator(_not_too_long)] = NOBODY
    requests_per_minute: Rate | None = None
    questions_per_minute: Rate | None = None

    def may(self, right: Right) -> bool:
        return right in self.rights

    def may_use(self, collection: str) -> bool:
        return any(fnmatchcase(collection, pattern) for pattern in self.collections)

    def check(self, right: Right) -> None:
        """Raise NOT_ALLOWED without the right."""
        if not self.may(right):
            raise Refusal(
                NOT_ALLOWED,
                f"The key of {self.name!r} does not have the right {right!r}. It has: "
                f"{', '.join(self.rights) or 'none'}.",
            )

    def check_collection(self, name: str) -> None:
        """Raise NOT_ALLOWED for a collection that it may not use, whether or not it exists."""
        if not self.may_use(name):
            raise Refusal(
                NOT_ALLOWED,
                f"The key of {self.name!r} may not use the collection {name!r}. It may use: "
                f"{', '.join(self.collections) or 'none'}.",
            )


# The tenant of the keys in `server.keys`, and of a server without keys.
OWNER: Final = Tenant(name="default", rights=list(RIGHTS), principals=EVERYTHING)


class _File(Strict):
    tenants: list[Tenant] = []


def by_key(keys: Iterable[str], tenants: Iterable[Tenant]) -> dict[str, Tenant]:
    """Return the tenants by the digests of their keys; `keys` are those of OWNER.

    Keys are looked up by digest, so that the time of a lookup reveals nothing about a key. A plain
    digest is sufficient for keys of 256 random bits, which people do not choose.
    """
    found = {digest(key.encode()): OWNER for key in keys}
    for tenant in tenants:
        found.update(dict.fromkeys(tenant.key_sha256, tenant))
    return found


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
        if len(content) > LARGEST_FILE:
            raise ValueError("it is larger than 4 MB")
        return parse_tenants(content.decode())
    except OSError as error:
        raise ConfigurationError(
            f"server.tenants_file: {path} cannot be read: {error.strerror}."
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"server.tenants_file: {path}: {error}") from None


def parse_tenants(text: str) -> list[Tenant]:
    """Parse a tenants file. Raises ValueError, which names the entry and never shows a digest."""
    try:
        tenants = parse(_File, tomllib.loads(text)).tenants
    except InvalidRequest as error:
        raise ValueError(error.detail) from None
    _refuse_repeated(tenants)
    return tenants


def _refuse_repeated(tenants: Iterable[Tenant]) -> None:
    names: set[str] = {OWNER.name}
    owners: dict[str, str] = {}
    for tenant in tenants:
        if tenant.name in names:
            reason = "is reserved" if tenant.name == OWNER.name else "appears twice"
            raise ValueError(f"the name {tenant.name!r} {reason}; each tenant needs its own name")
        names.add(tenant.name)
        for key in tenant.key_sha256:
            if other := owners.get(key):
                raise ValueError(f"{other!r} and {tenant.name!r} have the same key; make a new one")
            owners[key] = tenant.name


log = structlog.get_logger(__name__)

TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
LARGEST_TOKEN: Final = 16_000  # bytes
LEEWAY_S: Final = 30.0  # seconds that the clocks of issuer and gateway may differ
FETCH_S: Final = 5.0
# Only public-key algorithms: with HS256, every verifier could also create tokens.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
FRESH_S: Final = 300.0  # seconds that keys are used without requesting new ones
AGAIN_S: Final = 10.0  # seconds between two requests for them, whatever tokens arrive
STALE_S: Final = 3_600.0  # seconds that keys are used while the issuer does not respond
RIGHT: Final = "revelator:"


class TokenTenant(Tenant):
    """The tenant that a token names. A tenants file cannot contain its name, which has a colon."""

    name: Annotated[str, StringConstraints(pattern=r"^oidc:[\x21-\x7e]{1,128}$")]


class Tokens:
    """Verifies tokens by the public keys of their issuer, and returns their tenants. The keys are
    requested only when a token needs them, and at most every `AGAIN_S`.
    """

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise ConfigurationError if the extra `oidc` is not installed."""
        with importing("server.oidc", "oidc"):
            from jwt import PyJWKClient  # noqa: PLC0415
        self._settings = settings
        self._client = PyJWKClient(
            str(settings.jwks_url), cache_jwk_set=False, timeout=FETCH_S, ssl_context=tls_context()
        )
        self._clock = clock
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = -math.inf
        self._next = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> PyJWK:
        """Return a key. An unknown one is requested from the issuer.

        Raises TOKEN_REFUSED, or ISSUER_UNAVAILABLE if there are no keys at all.
        """
        if key_id not in self._keys or self._clock() - self._fetched_at > FRESH_S:
            task = self._refresh()
            if task is not None and key_id not in self._keys:
                await asyncio.wait({task})
        if self._clock() - self._fetched_at > STALE_S:
            raise Refusal(
                ISSUER_UNAVAILABLE, "The keys of the issuer cannot be read. Try again later."
            )
        key = self._keys.get(key_id)
        if key is None:
            raise Refusal(TOKEN_REFUSED, "No key of the issuer has the token's `kid`.")
        return key

    def _refresh(self) -> asyncio.Task[None] | None:
        if self._fetching is None and self._clock() >= self._next:
            self._next = self._clock() + AGAIN_S
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(retrieve)
        return self._fetching

    async def _fetch(self) -> None:
        try:
            keys = await anyio.to_thread.run_sync(
                self._client.get_signing_keys, abandon_on_cancel=True
            )
            signing = {key.key_id: key for key in keys if key.key_id and key.key_type != "oct"}
            if not signing:
                raise ValueError("no public key with a `kid` is in the response")
            self._keys, self._fetched_at = signing, self._clock()
        except Exception as error:  # PyJWT lets those of urllib and of its decoders pass
            log.error(
                "the keys of the issuer were not read",
                url=self._client.uri,
                reason=str(error)[:200] or type(error).__name__,
            )
        finally:
            self._fetching = None

    async def tenant(self, token: bytes) -> Tenant:
        """Return the tenant that a token names. Raises TOKEN_REFUSED and ISSUER_UNAVAILABLE."""
        import jwt  # noqa: PLC0415

        if len(token) > LARGEST_TOKEN:
            raise Refusal(TOKEN_REFUSED, f"The token is longer than {LARGEST_TOKEN:,} bytes.")
        settings = self._settings
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            if not isinstance(key_id, str):
                raise Refusal(TOKEN_REFUSED, "The token has no `kid`.")
            claims = jwt.decode(
                token,
                await self.find(key_id),  # and by its algorithm only
                algorithms=ALGORITHMS,
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as error:
            raise Refusal(TOKEN_REFUSED, f"The token is not valid: {_reason(error)}.") from None
        return tenant_of_claims(claims, settings)


def tenant_of_claims(claims: Mapping[str, Any], settings: OidcSettings) -> Tenant:
    """Return the tenant that verified claims describe. Raises TOKEN_REFUSED."""
    rights = _words(claims, settings.rights_claim) or []
    collections = _words(claims, settings.collections_claim)
    named = [_words(claims, claim) or [] for claim in settings.principals_claims]
    principals = frozenset(chain.from_iterable(named))
    if not EVERYTHING.isdisjoint(principals):
        raise Refusal(TOKEN_REFUSED, "A principal of the token is '*', which no token may be.")
    try:
        return TokenTenant(
            name=f"oidc:{claims['sub']}",
            rights=[right for right in RIGHTS if f"{RIGHT}{right}" in rights],
            collections=["*"] if collections is None else collections,
            principals=principals,
            requests_per_minute=settings.requests_per_minute,
            questions_per_minute=settings.questions_per_minute,
        )
    except ValidationError as error:
        claim = str(error.errors()[0]["loc"][0])
        if claim == "principals":
            raise Refusal(TOKEN_REFUSED, f"The token cannot be used: {TOO_MANY}.") from None
        claim = "sub" if claim == "name" else settings.collections_claim
        raise Refusal(TOKEN_REFUSED, f"The claim {claim!r} of the token cannot be used.") from None


def _words(claims: Mapping[str, Any], claim: str) -> list[str] | None:
    """Return the values of a claim, None if it is absent. Raises TOKEN_REFUSED."""
    if claim not in claims:
        return None
    value = claims[claim]
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Refusal(
            TOKEN_REFUSED, f"The claim {claim!r} of the token is neither a list nor text."
        )
    return words


def _reason(error: Exception) -> str:
    """Return PyJWT's message without the contents of the token."""
    return " ".join(re.findall(r"[A-Z]+[a-z]*|[a-z]+", type(error).__name__)).lower()
