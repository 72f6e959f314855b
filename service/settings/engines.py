"""The engines, and who plays which role on them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from service.settings.base import CommaList, Section


class EngineSettings(Section):
    kind: Literal["local", "openai", "vllm"] = "local"
    urls: Annotated[list[str], NoDecode, CommaList] = Field(
        [], description="Base URLs of OpenAI-compatible servers, with /v1."
    )
    model: str | None = Field(None, description="Model name at the server, or a local path.")
    key: SecretStr | None = None
    timeout_s: float = Field(30.0, gt=0, description="Longest silence of a call.")
    max_concurrency: int = Field(64, ge=1)
    constrained: Literal["auto", "vllm", "json_schema", "none"] = Field(
        "auto", description="How choices and schemas are asked for; `none`: read free text."
    )

    @field_validator("urls")
    @classmethod
    def _urls_are_http(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no http:// or https:// URL")
        return [url.rstrip("/") for url in urls]


class RoleSettings(Section):
    """Which engine, model or adapter, and template set plays a role."""

    engine: str = "default"
    model: str | None = None
    adapter: str | None = Field(
        None, description="LoRA adapter name at the server; wins over model."
    )
    templates: str = Field("compact", description="`full`, `compact`, or a folder of templates.")


class RolesSettings(Section):
    revelator: RoleSettings = RoleSettings()
    reader: RoleSettings = RoleSettings()
    judge: RoleSettings | None = Field(
        None, description="Relevance and ENDING; absent: as revelator."
    )
