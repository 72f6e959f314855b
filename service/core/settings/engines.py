"""Settings of the engines, and of the roles that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from service.core.settings.base import CommaList, JsonObject, Section, SectionWithSecrets
from service.core.settings.urls import address_of, checked

TEMPLATE_FIELD: Final = "chat_template_kwargs"
# Fields of a chat or completion request that the service sets (`service.engines.openai_wire`).
REQUEST_FIELDS: Final = frozenset([
    "model", "stream", "stream_options", "max_tokens", "temperature", "seed", "messages", "prompt",
    "stop", "logprobs", "top_logprobs", "structured_outputs", "response_format", "priority",
])  # fmt: skip
# Variables of chat templates: Qwen, GLM and SmolLM3 use the first, DeepSeek and Granite the second.
NO_THINKING: Final[dict[str, Any]] = {"enable_thinking": False, "thinking": False}


class EngineSettings(SectionWithSecrets):
    kind: Literal["local", "embedded", "openai", "vllm"] = Field(
        "embedded",
        description="Where the model runs. `embedded`: the shipped model, "
        "with ONNX Runtime; `local`: a model folder, with transformers; "
        "`openai` and `vllm`: the servers at `urls`.",
    )
    urls: Annotated[list[Annotated[str, AfterValidator(checked)]], NoDecode, CommaList] = Field(
        [], description="Base URLs of OpenAI-compatible servers, including /v1.", repr=False
    )
    model: str | None = Field(
        None, description="Name of the model at the server, or a local folder."
    )
    key: SecretStr | None = Field(None, description="API key, sent as a bearer token.")
    timeout_s: float = Field(
        30.0,
        gt=0,
        description="Maximum time in seconds without data from the server during a call; for a "
        "model in this process, without a completed forward pass.",
    )
    max_concurrency: int = Field(
        64,
        ge=1,
        description="Maximum number of concurrent calls, in total over the engine's vLLM workers. "
        "A model in this process runs one call at a time; 16 times as many may wait.",
    )
    resolve: bool = Field(
        False,
        description="Kind `vllm`: use every address of a host name in `urls` as a worker "
        "(Kubernetes headless service).",
    )
    constrained: Literal["auto", "vllm", "json_schema", "none"] = Field(
        "auto",
        description="How the engine is asked to restrict its output to choices and schemas: `vllm` "
        "(by `structured_outputs`), `json_schema` (by `response_format`), or `none` (not at all; "
        "the service parses free text). `auto`: `vllm` if the server is a vLLM, else "
        "`json_schema`.",
    )
    extra_body: Annotated[dict[str, Any], JsonObject] = Field(
        {},
        description="Additional fields of every request to the servers. Fields that the "
        "service sets are refused. `chat_template_kwargs`, the variables of the model's chat "
        "template, also apply to models in this process, and override those set by `reasoning`.",
    )
    reasoning: Literal["auto", "off", "on"] = Field(
        "auto",
        description="For models that think before they answer. `off`: the chat template gets "
        "`enable_thinking` and `thinking` as false. `on`: each chat call may use "
        "`reasoning_tokens` in addition to its own tokens. `auto`: as `on`, once thinking has "
        "been observed; a call that ended while the model was thinking is repeated.",
    )
    reasoning_tokens: int = Field(
        1024, ge=1, description="Additional tokens for thinking, per call."
    )

    @property
    def template_variables(self) -> dict[str, Any]:
        """Return the variables for the chat template."""
        variables: dict[str, Any] = self.extra_body.get(TEMPLATE_FIELD, {})
        return (NO_THINKING if self.reasoning == "off" else {}) | variables

    @field_validator("extra_body")
    @classmethod
    def _nothing_is_overridden(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if reserved := sorted(REQUEST_FIELDS & set(extra)):
            raise ValueError(f"the service sets {reserved[0]!r} itself; remove it")
        if not isinstance(extra.get(TEMPLATE_FIELD, {}), dict):
            raise ValueError(f"{TEMPLATE_FIELD} must be an object")
        return extra

    @model_validator(mode="after")
    def _only_servers_take_fields(self) -> EngineSettings:
        fields = sorted(set(self.extra_body) - {TEMPLATE_FIELD})
        if fields and self.kind in ("local", "embedded"):
            raise ValueError(
                f"extra_body is sent to servers, and an engine of kind {self.kind!r} has none; "
                f"remove {fields[0]!r}"
            )
        return self

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.key is not None and any(address_of(url).has_login for url in self.urls):
            raise ValueError("set either key or credentials in urls, not both")
        return self


class RoleSettings(Section):
    """The engine, model, and template set of a role: `revelator` routes, splits and asks, `judge`
    judges passages and endings, `reader` writes answers."""

    engine: str = Field("default", description="Name of the engine in `engines`.")
    model: str | None = Field(
        None,
        description="Model at the engine, or a LoRA adapter there. Default: the engine's model.",
    )
    templates: str | None = Field(
        None,
        description="`full`, `compact`, or a folder of templates. Default: the set that the model "
        "was trained on, if its folder names one (as that of the shipped model does), else `full`.",
    )

    encoder: Path | Literal["none", "shipped"] | None = Field(
        None,
        description="Of the reader only: folder of an encoder that finds answers in passages in "
        "place of the engine's model, as `revelator train extractor` writes it, `shipped`, or "
        "`none`. It copies, judges passages and declines by itself; the model still writes what "
        "is in no passage. Default: `shipped` for the shipped model, else `none`.",
    )
