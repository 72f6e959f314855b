"""Settings of the HTTP server and its tokens, of limits per question and of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, StringConstraints, model_validator
from pydantic_settings import NoDecode

from service.core.settings.base import (
    CommaList,
    Origin,
    Rate,
    Section,
    SectionWithSecrets,
    ServerUrl,
)
from service.core.settings.urls import is_loopback

Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]


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
    principals_claims: Annotated[list[Text], NoDecode, CommaList] = Field(
        [],
        description="Claims with the caller's principals, such as `email,groups`, each a list or "
        "separated by spaces. Of documents with `access`, the caller sees those that name one of "
        "them. Default: none.",
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
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError(
                "jwks_url must begin with https://, because anyone who can change the keys in "
                "transit can sign valid tokens"
            )
        return self


class ServerSettings(SectionWithSecrets):
    host: str = Field("127.0.0.1", description="Host to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0 selects a free port.")
    insecure: bool = Field(
        False,
        description="Allow listening on hosts other than loopback without API keys. On loopback, "
        "also accept requests with any `Host` header.",
    )
    keys: Annotated[list[SecretStr], NoDecode, CommaList] = Field(
        [],
        description="API keys. Clients send one as `Authorization: Bearer KEY` or "
        "`X-API-Key: KEY`. In the file named by `keys_file`, they are separated by commas or "
        "lines.",
    )
    tenants_file: Path | None = Field(
        None,
        description="TOML file of tenants: keys with a name, rights, collections and rates. It is "
        "read again when it changes. `revelator key NAME` creates an entry.",
    )
    public_url: ServerUrl = Field(
        None,
        description="URL at which clients reach this server, e.g. `https://answers.example.org`. "
        "Links to passages begin with it, and pages at its origin may send requests, which matters "
        "behind a proxy that changes the `Host` header. A server on loopback without keys accepts "
        "its host, too, in that header. Default: the host that the request names.",
    )
    cors_origins: Annotated[list[Origin], NoDecode, CommaList] = Field(
        [],
        description="Origins of other pages that may send requests and read the responses, such as "
        "`https://app.example`. Where keys are set, they need one.",
    )
    oidc: OidcSettings = OidcSettings()
    principals_header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = (
        Field(
            None,
            description="Header in which a trusted gateway names the principals of its user, "
            "separated by commas: the user and their groups. It counts for the keys of "
            "`server.keys`, for tenants with the principal `*`, and where there are no keys, all "
            "of which must be the gateway's; without the header, they see no document that has "
            "`access`. Default: the header is not read.",
        )
    )
    max_running: int = Field(
        64,
        ge=1,
        description="Maximum number of questions answered at the same time. Three quarters as many "
        "may wait, for 30 s. Further questions get 503 with `Retry-After`.",
    )
    drain_s: float = Field(
        10.0, ge=0, description="Seconds that running questions get to finish after SIGTERM."
    )

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key or a token."""
        return bool(self.keys) or self.tenants_file is not None or self.oidc.enabled


class LimitSettings(Section):
    """Limits per question."""

    timeout_s: float = Field(
        60.0, gt=0, le=300, description="Time limit in seconds, if the request sets none."
    )
    max_retrievals: int = Field(64, ge=1, description="Maximum number of retrievals.")
    max_llm_calls: int = Field(256, ge=1, description="Maximum number of engine calls.")
    max_tokens: int = Field(
        400_000, ge=1, description="Maximum number of tokens, of prompts and completions together."
    )


class TracingSettings(Section):
    """OpenTelemetry traces (extra `otel`)."""

    url: ServerUrl = Field(
        None,
        description="URL of an OpenTelemetry collector that takes OTLP over HTTP, e.g. "
        "`http://localhost:4318`. Without it nothing is traced. OpenTelemetry's own variables set "
        "the rest, such as `OTEL_TRACES_SAMPLER` for the share of questions that are traced.",
    )


class AnswerSettings(Section):
    """How answers without evidence are handled, on every route except `direct`."""

    no_evidence: Literal["abstain", "closed_book", "top3_unfiltered"] = Field(
        "abstain",
        description="If searches kept no passage: give no answer (`abstain`), let the model "
        "answer from its own knowledge (`closed_book`), or show it the three best-ranked "
        "passages (`top3_unfiltered`).",
    )
    unsupported: Literal["flag", "abstain", "allow"] | None = Field(
        None,
        description="If neither a kept passage nor a supported sub-answer contains the answer: "
        "give it with the flag `unsupported` (`flag`), give no answer (`abstain`), or let the "
        "model answer from its own knowledge with the flag `closed_book` (`allow`). Default: "
        "`abstain` if an encoder reads (`roles.reader.encoder`), else `flag`. A survey of "
        'documents ("Summarise …") is given with the flag in any case.',
    )
    last_resort: bool = Field(
        True,
        description="If a route or a loop ends without an answer and kept no passage: search once "
        "for the question itself, as ANRAG does, with the flag `last_resort`; or "
        "give no answer. A request's `last_resort` takes precedence.",
    )
    require_search: bool = Field(
        False,
        description="Withdraw an answer that was written before any search, also on the route "
        "`direct`. The question itself is then searched, unless `last_resort` is off.",
    )
    verify_with: Literal["reader"] | None = Field(
        None,
        description="Let an encoder (`roles.reader.encoder`, or the shipped one) read the passages "
        "too: an answer of a language model that it does not find in them is `unsupported`. It "
        "joins no passages, so it may miss the answer of a loop that needs several.",
    )
    no_answer_text: str = Field(
        "No answer was found in the passages.",
        min_length=1,
        description="Text returned if no answer is given.",
    )
    chat_citations: Literal["annotations", "text"] = Field(
        "annotations",
        description="Where responses of `/v1/chat/completions` contain citations, unless the "
        "request says otherwise: only in `annotations`, or also in the text of the message "
        "(`text`), for clients that do not show annotations.",
    )

    @property
    def invites_memory(self) -> bool:
        """Whether prompts with evidence may invite the model to answer from its own knowledge."""
        return self.no_evidence == "closed_book" or self.unsupported == "allow"
