"""Bearer tokens: JSON Web Tokens of one OpenID Connect issuer, in addition to the API keys.

The issuer's public keys come only from the configured URL. A token is refused unless one of these
keys signed it with an allowed algorithm that fits the key, and `iss`, `aud`, `exp` and `nbf` are
valid. Its claims then give the tenant, the rights and the collections (`OidcSettings`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import structlog
from pydantic import StringConstraints, ValidationError

from service.api.tenants import RIGHTS, Tenant
from service.core.concurrency import retrieve
from service.core.connections import open_session, reason_of, tls_context
from service.core.errors import ConfigurationError, RevelatorError
from service.core.settings.oidc import OidcSettings

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger(__name__)

TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
LARGEST_TOKEN: Final = 16_000  # bytes
LEEWAY_S: Final = 30.0  # seconds that the clocks of issuer and gateway may differ
FETCH_S: Final = 5.0
LARGEST_SET: Final = 256_000  # bytes of the issuer's keys
MOST_KEYS: Final = 100
FRESH_S: Final = 300.0  # seconds that keys are used without requesting new ones
AGAIN_S: Final = 10.0  # seconds between two requests for them, whatever tokens arrive
STALE_S: Final = 3_600.0  # seconds that keys are used while the issuer does not respond
RIGHT: Final = "revelator:"
SIGNS: Final = ("RSA", "EC", "OKP")


class TokenRefused(RevelatorError):
    slug, title, status = "token-refused", "The bearer token is not valid", 401


class IssuerUnavailable(RevelatorError):
    slug, title, status = "issuer-unavailable", "The keys of the issuer are not available", 503


class TokenTenant(Tenant):
    """The tenant that a token names. A tenants file cannot contain its name, which has a colon."""

    name: Annotated[str, StringConstraints(pattern=r"^oidc:[\x21-\x7e]{1,128}$")]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key, and the only algorithm that the issuer uses it for, if that is specified."""

    key: Any
    algorithm: str | None


class IssuerKeys:
    """The public keys at one URL, by their ids. Requests for them are limited in number, time and
    size, and made only when a token needs them.
    """

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise ConfigurationError for a CA file without certificates."""
        tls_context(settings.ca_files, "server.oidc.ca_files")
        self._settings = settings
        self._clock = clock
        self._keys: dict[str, PublicKey] = {}
        self._fetched_at: float | None = None
        self._next = 0.0
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> PublicKey:
        """Return a key. An unknown one is requested from the issuer, at most every `AGAIN_S`.

        Raises TokenRefused, or IssuerUnavailable if there are no keys at all.
        """
        age = self._age()
        if age is None or age > FRESH_S or key_id not in self._keys:
            task = self._refresh()
            if task is not None and key_id not in self._keys:
                await asyncio.wait({task})
        if (age := self._age()) is None or age > STALE_S:
            raise IssuerUnavailable("The keys of the issuer cannot be read. Try again later.")
        key = self._keys.get(key_id)
        if key is None:
            raise TokenRefused("No key of the issuer has the token's `kid`.")
        return key

    def _age(self) -> float | None:
        return None if self._fetched_at is None else self._clock() - self._fetched_at

    def _refresh(self) -> asyncio.Task[None] | None:
        if self._fetching is None and self._clock() >= self._next:
            self._next = self._clock() + AGAIN_S
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(retrieve)
        return self._fetching

    async def _fetch(self) -> None:
        import aiohttp  # noqa: PLC0415

        url = self._settings.jwks_url
        files = self._settings.ca_files
        try:
            async with (
                open_session(
                    total_s=FETCH_S, ca_files=files, ca_setting="server.oidc.ca_files"
                ) as session,
                session.get(str(url), allow_redirects=False) as response,
            ):
                keys = _read_keys(response.status, await _content(response))
            self._keys, self._fetched_at = keys, self._clock()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.error("the keys of the issuer were not read", url=url, reason=reason_of(error))
        finally:
            self._fetching = None


async def _content(response: aiohttp.ClientResponse) -> bytes:
    content = b""
    async for part in response.content.iter_any():
        content += part
        if len(content) > LARGEST_SET:
            raise ValueError(f"more than {LARGEST_SET:,} bytes")
    return content


def _read_keys(status: int, content: bytes) -> dict[str, PublicKey]:
    """Parse a JWKS (RFC 7517). Keys that are not for signatures, or of unknown kinds, are ignored.

    Raises ValueError if there is no usable key.
    """
    from jwt import PyJWK  # noqa: PLC0415
    from jwt.exceptions import InvalidKeyError, PyJWKError  # noqa: PLC0415

    if status != 200:
        raise ValueError(f"HTTP {status}")
    document = orjson.loads(content)
    listed = document.get("keys") if isinstance(document, dict) else None
    keys: dict[str, PublicKey] = {}
    for each in listed[:MOST_KEYS] if isinstance(listed, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("kid"), str):
            continue
        if each.get("kty") in SIGNS and each.get("use", "sig") == "sig":
            try:
                keys[each["kid"]] = PublicKey(PyJWK(each).key, each.get("alg"))
            except (PyJWKError, InvalidKeyError, ValueError, TypeError):
                continue
    if not keys:
        raise ValueError("no public key with a `kid` is in the response")
    return keys


class Tokens:
    """Verifies tokens and returns their tenants."""

    def __init__(self, settings: OidcSettings) -> None:
        """Raise ConfigurationError if the extra `oidc` is not installed."""
        try:
            import jwt  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                "server.oidc needs the extra `oidc`: pip install '.[oidc]' in the checkout"
            ) from None
        self._decode = jwt.decode
        self._header = jwt.get_unverified_header
        self._error = jwt.InvalidTokenError
        self._settings = settings
        self._keys = IssuerKeys(settings)

    async def tenant(self, token: bytes) -> Tenant:
        """Return the tenant that a token names. Raises TokenRefused and IssuerUnavailable."""
        if len(token) > LARGEST_TOKEN:
            raise TokenRefused(f"The token is longer than {LARGEST_TOKEN:,} bytes.")
        text = token.decode("ascii")
        try:
            header = self._header(text)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in self._settings.algorithms:
                raise TokenRefused("The token's signature algorithm is not accepted here.")
            if not isinstance(key_id, str):
                raise TokenRefused("The token has no `kid`.")
            key = await self._keys.find(key_id)
            if key.algorithm not in (None, algorithm):
                raise TokenRefused("The token's signature algorithm is not that of its key.")
            claims = self._claims(text, key, algorithm)
        except (self._error, ValueError, TypeError, RecursionError) as error:
            raise TokenRefused(f"The token is not valid: {_reason(error)}.") from None
        return tenant_of_claims(claims, self._settings)

    def _claims(self, token: str, key: PublicKey, algorithm: str) -> Mapping[str, Any]:
        """Return the verified claims. A key of another kind than the algorithm's is an error of
        PyJWT.
        """
        own = self._settings
        return self._decode(
            token,
            key.key,
            algorithms=[algorithm],
            issuer=own.issuer,
            audience=own.audience,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", own.name_claim]},
        )


def is_token(given: bytes) -> bool:
    """Whether a credential has the form of a signed token."""
    return TOKEN.fullmatch(given) is not None


def tenant_of_claims(claims: Mapping[str, Any], settings: OidcSettings) -> Tenant:
    """Return the tenant that verified claims describe. Raises TokenRefused."""
    rights = _words(claims, settings.rights_claim) or []
    collections = _words(claims, settings.collections_claim)
    try:
        return TokenTenant(
            name=f"oidc:{claims[settings.name_claim]}",
            rights=[right for right in RIGHTS if f"{RIGHT}{right}" in rights],
            collections=["*"] if collections is None else collections,
            requests_per_minute=settings.requests_per_minute,
            questions_per_minute=settings.questions_per_minute,
        )
    except ValidationError as error:
        claim = str(error.errors()[0]["loc"][0])
        claim = settings.name_claim if claim == "name" else settings.collections_claim
        raise TokenRefused(f"The claim {claim!r} of the token cannot be used.") from None


def _words(claims: Mapping[str, Any], claim: str) -> list[str] | None:
    """Return the values of a claim, None if it is absent. Raises TokenRefused."""
    if claim not in claims:
        return None
    value = claims[claim]
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TokenRefused(f"The claim {claim!r} of the token is neither a list nor text.")
    return words


def _reason(error: Exception) -> str:
    """Return PyJWT's message without the contents of the token."""
    return " ".join(re.findall(r"[A-Z]+[a-z]*|[a-z]+", type(error).__name__)).lower()
