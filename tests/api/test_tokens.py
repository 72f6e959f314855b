"""Bearer tokens of an issuer, whose keys come from a real server, and what attackers send."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from service.api import tenants as tokens
from service.api.tenants import Tenant, Tokens
from service.api.wire import Refusal
from service.core.settings.server import OidcSettings
from tests.conftest import need
from tests.support.live import Live, config, live
from tests.support.stub_server import stub_server

jwt = need("jwt")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


ISSUER, AUDIENCE = "https://login.example.com/realm", "revelator"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    of = jwt.algorithms.RSAAlgorithm if key in (RSA, OTHER_RSA) else jwt.algorithms.ECAlgorithm
    return {**of.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


@dataclass
class Issuer:
    """Serves a JWKS. `asked` counts how often, `delay_s` and `body` play what goes wrong."""

    keys: list[dict[str, Any]] = field(default_factory=lambda: [jwk(RSA, "one"), jwk(EC, "two")])
    url: str = ""
    asked: int = 0
    delay_s: float = 0.0
    body: bytes | None = None
    status: int = 200
    location: str = ""

    async def serve(self, request: web.Request) -> web.Response:
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        if self.location:
            raise web.HTTPFound(self.location)
        body = self.body if self.body is not None else json.dumps({"keys": self.keys}).encode()
        return web.Response(body=body, status=self.status)

    @property
    def settings(self) -> OidcSettings:
        return OidcSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=self.url)


@asynccontextmanager
async def running() -> AsyncIterator[Issuer]:
    issuer, app = Issuer(), web.Application()
    app.router.add_get("/keys", issuer.serve)
    async with stub_server(app) as address:
        issuer.url = f"http://{address}/keys"
        yield issuer


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running() as made:
        yield made


@pytest.fixture
async def service(issuer: Issuer) -> AsyncIterator[Live]:
    oidc = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.url}
    async with live(settings=config(server={"oidc": oidc, "keys": ["a-key"]})) as running:
        yield running


def claims(**changed: Any) -> dict[str, Any]:
    now = int(time.time())
    own = {
        "iss": ISSUER, "aud": [AUDIENCE, "other"], "sub": "auth0|ann", "exp": now + 600,
        "nbf": now - 5, "scope": "openid revelator:ask write",
    }  # fmt: skip
    return {name: value for name, value in (own | changed).items() if value is not None}


def token(key: Any = RSA, alg: str = "RS256", kid: str | None = "one", **changed: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    made: str = jwt.encode(claims(**changed), key, algorithm=alg, headers=headers)
    return made


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(alg: str) -> str:
    return f"{part({'alg': alg, 'kid': 'one', 'typ': 'JWT'})}.{part(claims())}."


def by_the_public_key() -> str:
    """HS256, with what everybody knows as its secret."""
    import hashlib
    import hmac

    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims())}"
    digest = hmac.new(public, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def with_its_own_key() -> str:
    """A token that brings the key that signed it, and a URL to fetch it from."""
    headers = {"kid": "one", "jwk": jwk(OTHER_RSA, "one"), "jku": "http://127.0.0.1:9/keys"}
    made: str = jwt.encode(claims(), OTHER_RSA, algorithm="RS256", headers=headers)
    return made


def changed_after_signing() -> str:
    head, _, signature = token().split(".")
    return f"{head}.{part(claims(sub='root'))}.{signature}"


HOSTILE: dict[str, Callable[[], str]] = {
    "alg none": lambda: unsigned("none"),
    "alg None": lambda: unsigned("None"),
    "no signature": lambda: unsigned("RS256"),
    "HS256 with the public key": by_the_public_key,
    "an algorithm that is not allowed": lambda: token(alg="RS512"),
    "an algorithm of another kind of key": lambda: token(EC, "ES256", "one"),
    "wrong kid": lambda: token(kid="nowhere"),
    "another key's kid": lambda: token(OTHER_RSA, kid="one"),
    "no kid": lambda: token(kid=None),
    "its own key": with_its_own_key,
    "changed": changed_after_signing,
    "expired": lambda: token(exp=int(time.time()) - 60),
    "without an end": lambda: token(exp=None),
    "an end that is no number": lambda: token(exp="tomorrow"),
    "not yet valid": lambda: token(nbf=int(time.time()) + 300),
    "other issuer": lambda: token(iss="https://evil.example.com"),
    "issuer with a slash": lambda: token(iss=ISSUER + "/"),
    "without an issuer": lambda: token(iss=None),
    "other audience": lambda: token(aud="another-service"),
    "without an audience": lambda: token(aud=None),
    "without a subject": lambda: token(sub=None),
    "a subject with a line break": lambda: token(sub="ann\nroot"),
    "an empty subject": lambda: token(sub=""),
    "a long subject": lambda: token(sub="a" * 200),
    "a scope that is no text": lambda: token(scope={"revelator:ask": True}),
    "giant": lambda: token(padding="x" * 20_000),
    "deep": lambda: f"{part({'alg': 'RS256', 'kid': 'one'})}." + "W1tb" * 3_000 + ".AAAA",
    "a header that is a list": lambda: f"{part([1])}.{part({})}.AAAA",
}


async def status(service: Live, credential: str, path: str = "/answer") -> tuple[int, str]:
    body, headers = (
        {"question": "Who?", "route": "direct"},
        {"Authorization": f"Bearer {credential}"},
    )
    response = await service.post(path, json=body, headers=headers)
    told = response.json()
    assert credential[:40] not in str(told)
    return response.status, str(told.get("type", "")).rpartition(":")[2]


async def test_a_hostile_token_is_refused(service: Live) -> None:
    for name, made in HOSTILE.items():
        assert await status(service, made()) == (401, "token-refused"), name


async def test_tokens_and_keys_are_accepted_side_by_side(service: Live, issuer: Issuer) -> None:
    assert (await status(service, token()))[0] == 200
    assert (await status(service, token(EC, "ES256", "two")))[0] == 200
    assert (await status(service, "a-key"))[0] == 200
    assert await status(service, "another-key") == (403, "key-refused")
    assert issuer.asked == 1


async def test_a_key_is_for_its_algorithm_where_the_issuer_says_which(
    service: Live, issuer: Issuer
) -> None:
    issuer.keys = [jwk(RSA, "one"), jwk(RSA, "pss", alg="PS256"), jwk(RSA, "secret", use="enc")]
    assert (await status(service, token()))[0] == 200
    assert (await status(service, token(alg="PS256")))[0] == 401
    assert (await status(service, token(alg="PS256", kid="pss")))[0] == 200
    assert (await status(service, token(kid="pss")))[0] == 401
    assert (await status(service, token(kid="secret")))[0] == 401


async def test_claims_are_rights_and_collections(service: Live) -> None:
    url = "/collections/docs/documents"
    assert await status(service, token(), url) == (403, "not-allowed")
    assert await status(service, token(scope="write openid"), "/answer") == (403, "not-allowed")
    write = token(scope=["revelator:write"], collections="docs faq-*")
    assert await status(service, write, url) == (422, "invalid-request")  # the body is read
    assert await status(service, write, "/collections/own/documents") == (403, "not-allowed")


async def test_tokens_of_one_subject_share_its_rates(issuer: Issuer) -> None:
    oidc = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.url}
    oidc |= {"questions_per_minute": 2, "requests_per_minute": 4}
    async with live(settings=config(server={"oidc": oidc})) as service:
        ann = [token(jti=str(number)) for number in range(4)]
        bob = token(EC, "ES256", "two", sub="bob")
        assert len({*ann, bob}) == 5
        assert [(await status(service, each))[0] for each in ann[:2]] == [200, 200]
        assert await status(service, ann[2]) == (429, "rate-limited")
        assert (await status(service, bob))[0] == 200
        models = "/v1/models"  # a request, and no question
        told = []
        for each in (ann[3], ann[0]):
            headers = {"Authorization": f"Bearer {each}"}
            response = await service.get(models, headers=headers)
            told.append((response.status, response.headers["RateLimit"][:14]))
        assert told == [(200, '"requests";r=0'), (429, '"requests";r=0')]


def tenant(settings: OidcSettings | None = None, **named: Any) -> Tenant:
    return tokens.tenant_of_claims({"sub": "ann"} | named, settings or OidcSettings())


def test_what_claims_name() -> None:
    made = tenant(sub="default", scope="revelator:administer")  # no tenant of the file
    assert (made.name, made.rights, made.collections) == ("oidc:default", ["administer"], ["*"])
    for empty in ([], "", " "):
        assert not tenant(collections=empty).may_use("default")
    with pytest.raises(Refusal, match="collections"):
        tenant(collections=None)
    own = OidcSettings(principals_claims="email, groups")
    groups = {"email": "ann@x.example", "groups": ["a group", "b"]}
    assert tenant(own, **groups).principals == {"ann@x.example", "a group", "b"}
    assert tenant(own).principals == tenant(**groups).principals == frozenset()
    for wrong, said in ((["b", "*"], "'\\*'"), (["x" * 10_240], "10,240|8,000"), ({}, "neither")):
        with pytest.raises(Refusal, match=said):
            tenant(own, groups=wrong)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def found(keys: Tokens, kid: str) -> str:
    try:
        await keys.find(kid)
    except Refusal as error:
        return error.slug
    return "found"


async def test_keys_are_rotated_and_requests_for_them_are_few(issuer: Issuer) -> None:
    clock = Clock()
    keys = Tokens(issuer.settings, clock)
    assert {await found(keys, "one") for _ in range(20)} == {"found"}
    assert {await found(keys, f"unknown-{n}") for n in range(20)} == {"token-refused"}
    assert issuer.asked == 1
    issuer.keys = [jwk(OTHER_RSA, "three")]
    clock.now += tokens.AGAIN_S
    assert await asyncio.gather(*(found(keys, "three") for _ in range(20))) == ["found"] * 20
    assert issuer.asked == 2
    assert await found(keys, "one") == "token-refused"


async def test_keys_outlive_an_issuer_that_is_away_for_a_while(issuer: Issuer) -> None:
    clock = Clock()
    keys = Tokens(issuer.settings, clock)
    assert await found(keys, "one") == "found"
    issuer.status = 500
    clock.now += tokens.FRESH_S + 1
    assert await found(keys, "one") == "found"
    clock.now += tokens.STALE_S
    assert await found(keys, "one") == "issuer-unavailable"


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": b"{"},
        {"body": b"[]"},
        {"body": b'{"keys": []}'},
        {"body": b'{"keys": [{"kty": "oct", "k": "AAAA", "kid": "one", "alg": "HS256"}]}'},
        {"body": b'{"keys": [{"kty": "RSA", "kid": "one"}, 7, null]}'},
        {"status": 404},
        {"location": "/elsewhere"},
        {"delay_s": 5.0},
    ],
    ids=str,
)
async def test_without_keys_nobody_is_admitted(
    issuer: Issuer, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FETCH_S", 0.3)
    for name, value in wrong.items():
        setattr(issuer, name, value)
    assert await found(Tokens(issuer.settings, Clock()), "one") == "issuer-unavailable"


async def test_a_caller_is_told_to_come_back_where_the_issuer_is_away() -> None:
    oidc = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "http://127.0.0.1:9/keys"}
    async with live(settings=config(server={"oidc": oidc})) as service:
        assert await status(service, token()) == (503, "issuer-unavailable")
        assert (await service.post("/answer", json={"question": "Who?"})).status == 401
        async with aiohttp.request("GET", f"{service.url}/healthz") as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"issuer": ISSUER}, "also set audience and jwks_url"),
        ({"jwks_url": "http://login.example.com/keys"}, "must begin with https://"),
    ],
)
def test_settings_that_would_not_protect_are_refused(given: dict[str, Any], told: str) -> None:
    whole = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://login.example.com/keys"}
    with pytest.raises(ValidationError, match=told):
        OidcSettings.model_validate(given if "issuer" in given else whole | given)
