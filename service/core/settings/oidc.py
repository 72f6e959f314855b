"""Settings of bearer tokens: JSON Web Tokens of one OpenID Connect issuer."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, model_validator

from service.core.settings.base import Rate, Section, ServerUrl

Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OidcSettings(Section):
    """Tokens that are accepted beside the API keys (extra `oidc`). `issuer`, `audience` and
    `jwks_url` are set together. The tenant's name is `oidc:` and the claim `sub`."""

    issuer: Text | None = Field(
        None, description="Required value of the claim `iss`, compared exactly."
    )
    audience: Text | None = Field(
        None, description="Value that the claim `aud` must equal or contain."
    )
    jwks_url: ServerUrl = Field(
        None,
        description="https URL of the issuer's public keys (JWKS). URLs inside tokens are never "
        "requested.",
    )
    rights_claim: Text = Field(
        "scope",
        description="Claim with the rights, as a list or separated by spaces: `revelator:ask`, "
        "`revelator:write`, `revelator:administer`. Other values are ignored.",
    )
    collections_claim: Text = Field(
        "collections",
        description="Claim with the collections, as a list or separated by spaces; names, or "
        "patterns with `*` and `?`. A token without this claim may use all collections; a token "
        "with an empty claim may use none.",
    )
    requests_per_minute: Rate | None = Field(
        None,
        description="Maximum number of requests per minute for each tenant authenticated by a "
        "token. Default: no limit.",
    )
    questions_per_minute: Rate | None = Field(
        None,
        description="Maximum number of questions per minute for each tenant authenticated by a "
        "token. Default: no limit.",
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
            raise ValueError(
                "jwks_url must begin with https://, because anyone who can change the keys in "
                "transit can sign valid tokens"
            )
        return self
