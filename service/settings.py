"""Typed settings: `revelator.toml`, then `REVELATOR_…` variables (`__` for a dot), then flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from service.domain import RouteName
from service.errors import ConfigurationError

PREFIX = "REVELATOR_"
OWN_VARIABLES = {
    "REVELATOR_REAL",
    "REVELATOR_SHARED",
    "REVELATOR_CONFIG",
    "REVELATOR_CI_CACHE",
}  # read elsewhere, not settings


def _split(value: Any) -> Any:
    """A variable gives a list as comma-separated text."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


CommaList = BeforeValidator(_split)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    insecure: bool = Field(False, description="Serve on another host than loopback without keys.")
    keys: Annotated[list[SecretStr], NoDecode, CommaList] = Field(
        [], description="API keys; sent as `Authorization: Bearer`."
    )
    max_running: int = Field(64, ge=1, description="Questions answered at once.")
    max_waiting: int = Field(
        256, ge=0, description="Questions that may wait; further ones get 503."
    )
    max_wait_s: float = Field(30.0, gt=0, description="Longest wait before 503.")
    max_body_bytes: int = Field(1_000_000, ge=1_000, description="Larger bodies get 413.")
    drain_s: float = Field(10.0, ge=0, description="Seconds running questions get at SIGTERM.")


class RetrievalSettings(Section):
    elasticsearch_url: str | None = Field(
        None, description="http://[user:password@]host:9200; absent: embedded tantivy."
    )
    elasticsearch_replicas: int = Field(0, ge=0, description="Of each index made from now on.")
    qdrant_url: str | None = Field(
        None, description="http://[:KEY@]host:6333; absent: embedded qdrant-edge."
    )
    embedding_model: str = Field(
        "minilm", description="`minilm`, from the package of extra `local`."
    )
    rrf_k: int = Field(60, ge=1, description="k of reciprocal rank fusion.")
    timeout_s: float = Field(10.0, gt=0, description="Per backend and search.")


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


class RoutesSettings(Section):
    allowed: Annotated[list[RouteName], NoDecode, CommaList] = [
        "direct",
        "single",
        "compound",
        "complex",
    ]


class HanragSettings(Section):
    """The paper's ablations (methods §1.6) and failure policy (§1.2)."""

    relevance: bool = True
    ending: bool = True
    refine: bool = True
    on_no_evidence: Literal["abstain", "closed_book", "top3_unfiltered"] = "abstain"
    fetch_k: int = Field(10, ge=1, le=100)
    max_parts: int = Field(8, ge=1, le=32)


class AutoragSettings(Section):
    """Auto-RAG (methods §2)."""

    mode: Literal["tuned", "few_shot"] = "tuned"
    parametric: bool = True
    max_retrievals: int = Field(5, ge=1, le=20, description="T")
    max_parametric: int = Field(5, ge=0, le=20, description="T^PK, at most max_steps")
    context_tokens: int = Field(8192, ge=512, description="Oldest documents go when it is full.")


class LimitSettings(Section):
    """Per question, beside what a request may ask for."""

    timeout_s: float = Field(60.0, gt=0, le=300)
    max_retrievals: int = Field(64, ge=1)
    max_llm_calls: int = Field(256, ge=1)
    max_tokens: int = Field(400_000, ge=1)


class AnswerSettings(Section):
    no_answer_text: str = Field(
        "No answer was found in the passages.", min_length=1, description="Said when abstaining."
    )
    merge_style: Literal["prose", "benchmark"] = Field(
        "prose", description="`benchmark` joins a compound answer's parts by ` && `."
    )


class Settings(Section):
    data_dir: Path = Path(platformdirs.user_data_dir("revelator"))
    server: ServerSettings = ServerSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    engines: dict[str, EngineSettings] = {"default": EngineSettings()}
    roles: RolesSettings = RolesSettings()
    routes: RoutesSettings = RoutesSettings()
    hanrag: HanragSettings = HanragSettings()
    autorag: AutoragSettings = AutoragSettings()
    limits: LimitSettings = LimitSettings()
    answers: AnswerSettings = AnswerSettings()


def _gather(file: dict[str, Any], flags: dict[str, Any]) -> Settings:
    """Flags over environment over file. `Settings` itself reads nothing from outside."""

    class Sources(Settings, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__")

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, file)

    return Settings.model_validate(dict(Sources(**flags)))


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read file, then environment, then `flags` (dotted names), each over the one before.

    Without `config`, `revelator.toml` of the working directory is read where there is one. Raises
    ConfigurationError naming the file, the variable or the setting, and what is wrong with it.
    """
    _refuse_unknown_variables()
    file = _read_file(config)
    try:
        return _gather(file, _nested(flags or {}))
    except ValidationError as error:
        raise ConfigurationError(_explain(error)) from None
    except SettingsError as error:
        raise ConfigurationError(f"settings: {error}") from None


def _read_file(config: Path | None) -> dict[str, Any]:
    path = config or Path("revelator.toml")
    if not path.is_file():
        if config is None:
            return {}
        raise ConfigurationError(f"no settings file at {path}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no valid TOML: {error}") from None


def _refuse_unknown_variables() -> None:
    """A misspelt variable must not pass in silence, as pydantic-settings lets it."""
    known = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields} | OWN_VARIABLES
    for name in os.environ:
        if name.startswith(PREFIX) and name.split("__")[0].upper() not in known:
            names = ", ".join(sorted(known - OWN_VARIABLES))
            raise ConfigurationError(f"{name} is no setting; they begin with {names}")


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names to nested dictionaries; None is a flag that was not given."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None:
            *parents, leaf = name.split(".")
            node = values
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
    return values


def _explain(error: ValidationError) -> str:
    lines = [
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
    ]
    return "settings: " + "; ".join(lines)
