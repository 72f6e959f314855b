"""The engines, and who plays which role on them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from service.settings.base import CommaList, Section


class PoolSettings(Section):
    """Many workers behind one name (engines of kind `vllm`). Times are seconds."""

    resolve: bool = Field(
        False, description="Every address of a host name in urls is a worker (headless service)."
    )
    resolve_s: float = Field(5.0, gt=0, description="Between look-ups of host names.")
    probe_s: float = Field(2.0, gt=0, description="Between probes of a worker, and their limit.")
    max_per_worker: int = Field(64, ge=1, description="Calls at one worker at once.")
    max_waiting: int = Field(2048, ge=0, description="Calls that may wait; further ones get 503.")
    max_wait_s: float = Field(30.0, gt=0, description="Longest wait for a place before 503.")
    outage_s: float = Field(5.0, ge=0, description="Longest wait while no worker is up.")
    eject_after: int = Field(3, ge=1, description="Failures in a row that eject a worker.")
    eject_s: float = Field(1.0, gt=0, description="First ejection; doubles to a minute at most.")
    forgive_s: float = Field(60.0, gt=0, description="Health after which ejections are forgotten.")
    slow_start_s: float = Field(10.0, ge=0, description="Until a new worker has its full share.")
    retries: int = Field(3, ge=0, description="Times a call is begun again at another worker.")


class EngineSettings(Section):
    kind: Literal["local", "openai", "vllm"] = "local"
    urls: Annotated[list[str], NoDecode, CommaList] = Field(
        [], description="Base URLs of OpenAI-compatible servers, with /v1."
    )
    model: str | None = Field(None, description="Model name at the server, or a local path.")
    key: SecretStr | None = None
    timeout_s: float = Field(30.0, gt=0, description="Longest silence of a call.")
    max_concurrency: int = Field(64, ge=1, description="Calls at once, over all workers.")
    session_header: str | None = Field(
        None, description="Header that names the question, for a balancer with session affinity."
    )
    pool: PoolSettings = PoolSettings()
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
