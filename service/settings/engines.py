"""The engines, and who plays which role on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from service.settings.base import CommaList, JsonObject, Section, SectionWithSecrets
from service.settings.urls import address_of, checked

TEMPLATE_FIELD: Final = "chat_template_kwargs"
# Fields of a chat or completion request that the service sets (`generation.openai_wire`).
REQUEST_FIELDS: Final = frozenset([
    "model", "stream", "stream_options", "max_tokens", "temperature", "seed", "messages", "prompt",
    "stop", "logprobs", "top_logprobs", "structured_outputs", "response_format", "priority",
    TEMPLATE_FIELD,
])  # fmt: skip
# What chat templates read: Qwen, GLM and SmolLM3 the first, DeepSeek and Granite the second.
NO_THINKING: Final[dict[str, Any]] = {"enable_thinking": False, "thinking": False}


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


class EngineSettings(SectionWithSecrets):
    kind: Literal["local", "embedded", "openai", "vllm"] = Field(
        "local",
        description="`local`: a model folder, on torch; `embedded`: a folder that `revelator "
        "compile` made, on ONNX Runtime; `openai` and `vllm`: servers at `urls`.",
    )
    urls: Annotated[list[str], NoDecode, CommaList] = Field(
        [], description="Base URLs of OpenAI-compatible servers, with /v1.", repr=False
    )
    model: str | None = Field(None, description="Model name at the server, or a local path.")
    key: SecretStr | None = Field(None, description="Sent as a bearer token.")
    key_file: Path | None = Field(None, description="A file that holds the key, in its place.")
    ca_file: FilePath | None = Field(
        None, description="Certificates (PEM) of the authority that signed the servers' own."
    )
    timeout_s: float = Field(30.0, gt=0, description="Longest silence of a call.")
    max_concurrency: int = Field(64, ge=1, description="Calls at once, over all workers.")
    session_header: str | None = Field(
        None, description="Header that names the question, for a balancer with session affinity."
    )
    pool: PoolSettings = PoolSettings()
    constrained: Literal["auto", "vllm", "json_schema", "none"] = Field(
        "auto", description="How choices and schemas are asked for; `none`: read free text."
    )
    extra_body: Annotated[dict[str, Any], JsonObject] = Field(
        {}, description="Fields added to every request to the servers; none that the service sets."
    )
    chat_template_kwargs: Annotated[dict[str, Any], JsonObject] = Field(
        {}, description="Variables for the model's chat template, over those of `reasoning`."
    )
    reasoning: Literal["auto", "off", "on"] = Field(
        "auto",
        description="Models that think before they answer. `off`: their chat templates are told "
        "not to (`enable_thinking` and `thinking` are false). `on`: each chat call may use "
        "`reasoning_tokens` beside its own. `auto`: it may once thinking was seen, and a call that "
        "ended while the model thought is made again.",
    )
    reasoning_tokens: int = Field(1024, ge=1, description="Room for thinking, of each call.")

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is given."""
        return (NO_THINKING if self.reasoning == "off" else {}) | self.chat_template_kwargs

    @field_validator("extra_body")
    @classmethod
    def _nothing_is_overridden(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(REQUEST_FIELDS & set(extra)):
            raise ValueError(
                f"the service sets {own[0]!r} itself; leave it out"
                + (", and set chat_template_kwargs instead" if own[0] == TEMPLATE_FIELD else "")
            )
        return extra

    @model_validator(mode="after")
    def _only_servers_take_fields(self) -> EngineSettings:
        if self.extra_body and self.kind in ("local", "embedded"):
            raise ValueError(
                f"extra_body goes to servers, and an engine of kind {self.kind!r} has none: leave "
                "it out"
            )
        return self

    @field_validator("urls")
    @classmethod
    def _urls_are_http(cls, urls: list[str]) -> list[str]:
        return [checked(url) for url in urls]

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.key is not None and any(address_of(url).has_login for url in self.urls):
            raise ValueError("give key or credentials in urls, not both")
        return self


class RoleSettings(Section):
    """Which engine, model or adapter, and template set plays a role."""

    engine: str = "default"
    model: str | None = None
    adapter: str | None = Field(
        None, description="LoRA adapter name at the server; wins over model."
    )
    templates: str | None = Field(
        None,
        description="`full`, `compact`, `tiny`, or a folder of templates. Absent: the set that the "
        "model was trained on where its folder says so (the shipped model's does), else `full`.",
    )


class RolesSettings(Section):
    revelator: RoleSettings = RoleSettings()
    reader: RoleSettings = RoleSettings()
    judge: RoleSettings | None = Field(
        None, description="Relevance and ENDING; absent: as revelator."
    )
