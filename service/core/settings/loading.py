"""Load the settings from `revelator.toml`, `REVELATOR_…` variables (`__` for a dot) and flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from service.core.errors import ConfigurationError
from service.core.settings.base import Section
from service.core.settings.engines import EngineSettings, RolesSettings
from service.core.settings.loops import (
    AutoragSettings,
    BaselinesSettings,
    DraginSettings,
    EfficientragSettings,
    HanragSettings,
    RoutesSettings,
)
from service.core.settings.names import advice_on
from service.core.settings.retrieval import RetrievalSettings
from service.core.settings.routing import EscalationSettings, RouterSettings
from service.core.settings.server import AnswerSettings, LimitSettings, ServerSettings

PREFIX = "REVELATOR_"
OWN_VARIABLES = {
    "REVELATOR_REAL",
    "REVELATOR_SHARED",
    "REVELATOR_CONFIG",
    "REVELATOR_CI_CACHE",
}  # read elsewhere, not settings


class Settings(Section):
    data_dir: Path = Field(
        Path(platformdirs.user_data_dir("revelator")),
        description="Folder of the embedded stores and the manifests.",
    )
    server: ServerSettings = ServerSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    engines: dict[str, EngineSettings] = {"default": EngineSettings()}
    roles: RolesSettings = RolesSettings()
    routes: RoutesSettings = RoutesSettings()
    router: RouterSettings = RouterSettings()
    escalation: EscalationSettings = EscalationSettings()
    hanrag: HanragSettings = HanragSettings()
    autorag: AutoragSettings = AutoragSettings()
    dragin: DraginSettings = DraginSettings()
    efficientrag: EfficientragSettings = EfficientragSettings()
    baselines: BaselinesSettings = BaselinesSettings()
    limits: LimitSettings = LimitSettings()
    answers: AnswerSettings = AnswerSettings()


def _gather(file: dict[str, Any], flags: dict[str, Any]) -> Settings:
    """Flags over environment over file. `Settings` itself reads nothing from outside."""

    class Sources(Settings, BaseSettings):
        model_config = SettingsConfigDict(
            env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True
        )

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
    """Load the settings from the file, the environment and `flags`, in ascending precedence.

    Flags have dotted names. Without `config`, `revelator.toml` in the working directory is read, if
    it exists. Raises ConfigurationError, which names the file, variable or setting and the problem.
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
        raise ConfigurationError(f"Settings file {path} does not exist.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Settings file {path} is not valid TOML: {error}") from None


def _refuse_unknown_variables() -> None:
    """A misspelt variable must not pass in silence, as pydantic-settings lets it."""
    known = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields} | OWN_VARIABLES
    for name in os.environ:
        if name.startswith(PREFIX) and name.split("__")[0].upper() not in known:
            names = ", ".join(sorted(known - OWN_VARIABLES))
            raise ConfigurationError(f"{name} is not a setting. Settings begin with {names}.")


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
    lines = []
    for problem in error.errors():
        name, said = ".".join(map(str, problem["loc"])), problem["msg"]
        if problem["type"] == "extra_forbidden":
            said = advice_on(Settings, problem["loc"])
        lines.append(f"{name}: {said.removeprefix('Value error, ')}")
    return "settings: " + "; ".join(lines)
