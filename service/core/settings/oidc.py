"""Settings of bearer tokens: JSON Web Tokens of one OpenID Connect issuer."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, FilePath, StringConstraints, model_validator
from pydantic_settings import NoDecode

from service.core.settings.base import CommaList, Rate, Section, ServerUrl

# Only public-key algorithms: with HS256, every verifier could also create tokens.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OidcSettings(Section):
    """Tokens that are accepted beside the API keys (extra `oidc`). `issuer`, `audience` and
    `jwks_url` are set together."""

    issuer: Text | None = Field(None, description="The claim `iss` of its tokens, exactly.")
    audience: Text | None = Field(
        None, description="What the claim `aud` of a token must be, or contain."
    )
    jwks_url: ServerUrl = Field(
        None,
        description="https URL of the issuer's public keys (JWKS). Nothing that a token names is "
        "ever fetched.",
    )
    algorithms: Annotated[list[Algorithm], NoDecode, CommaList] = Field(
        ["RS256", "PS256", "ES256", "EdDSA"],
        min_length=1,
        description="Signature algorithms that are accepted.",
    )
    name_claim: Text = Field(
        "sub", description="Claim that names the tenant, which is `oidc:` and its value."
    )
    rights_claim: Text = Field(
        "scope",
        description="Claim with the rights, as a list or separated by spaces: `revelator:ask`, "
        "`revelator:write`, `revelator:administer`. Other values are ignored.",
    )
    collections_claim: Text = Field(
        "collections",
        description="Claim with the collections, as a list or separated by spaces; names, or "
        "patterns with `*` and `?`. A token without it may use all of them, one in which it is "
        "empty none.",
    )
    requests_per_minute: Rate | None = Field(
        None, description="Requests a minute of each tenant that tokens name. Default: no limit."
    )
    questions_per_minute: Rate | None = Field(
        None, description="Questions a minute of each tenant that tokens name. Default: no limit."
    )
    ca_files: Annotated[list[FilePath], NoDecode, CommaList] = Field(
        [],
        description="PEM files with certificate authorities (CA) that are trusted besides the "
        "public ones, for `jwks_url`.",
    )

    @property
    def enabled(self) -> bool:
        return self.issuer is not None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = {name: getattr(self, name) for name in ("issuer", "audience", "jwks_url")}
        lacking = [name for name, value in given.items() if not value]
        if lacking and len(lacking) < len(given):
            raise ValueError(f"also set {' and '.join(lacking)}")
        parts = urlsplit(self.jwks_url or "https:")
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise ValueError("jwks_url must be https, since who changes the keys signs the tokens")
        return self
