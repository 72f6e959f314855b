"""Load the settings from `revelator.toml`, `REVELATOR_…` variables (`__` for a dot) and flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import platformdirs
from pydantic import (
    BaseModel,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from service.core.domain import RoleName
from service.core.errors import ConfigurationError
from service.core.settings.base import CommaList, Section
from service.core.settings.engines import EngineSettings, RoleSettings
from service.core.settings.loops import (
    AutoragSettings,
    BaselinesSettings,
    DraginSettings,
    EfficientragSettings,
    HanragSettings,
    RoutesSettings,
    SearcherSettings,
)
from service.core.settings.retrieval import IngestSettings, RetrievalSettings
from service.core.settings.server import (
    AnswerSettings,
    LimitSettings,
    ServerSettings,
    TracingSettings,
)
from service.core.validation import message_of

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
    key: SecretStr | None = Field(
        None,
        description="API key that commands send to a server. Default: the first of `server.keys`.",
    )
    ca_files: Annotated[list[FilePath], NoDecode, CommaList] = Field(
        [],
        description="PEM files with certificate authorities (CA) that all connections to servers "
        "trust besides the public ones.",
    )
    server: ServerSettings = ServerSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    ingest: IngestSettings = IngestSettings()
    engines: dict[str, EngineSettings] = {"default": EngineSettings()}
    roles: dict[RoleName, RoleSettings] = {}
    routes: RoutesSettings = RoutesSettings()
    hanrag: HanragSettings = HanragSettings()
    autorag: AutoragSettings = AutoragSettings()
    dragin: DraginSettings = DraginSettings()
    efficientrag: EfficientragSettings = EfficientragSettings()
    searcher: SearcherSettings = SearcherSettings()
    baselines: BaselinesSettings = BaselinesSettings()
    limits: LimitSettings = LimitSettings()
    answers: AnswerSettings = AnswerSettings()
    tracing: TracingSettings = TracingSettings()

    @field_validator("roles")
    @classmethod
    def _only_the_reader_has_an_encoder(
        cls, roles: dict[RoleName, RoleSettings]
    ) -> dict[RoleName, RoleSettings]:
        if wrong := [name for name, role in roles.items() if role.encoder and name != "reader"]:
            raise ValueError(f"{wrong[0]}.encoder: only the role reader has an encoder; remove it")
        return roles

    @model_validator(mode="after")
    def _keeps_files_where_they_are_found(self) -> Self:
        if self.ingest.keep_files and self.retrieval.elasticsearch_url:
            raise ValueError(
                "ingest.keep_files: the files would be in the data directory of this process, "
                "where other gateways of the same Elasticsearch do not find them; remove it, or "
                "retrieval.elasticsearch_url"
            )
        return self

    def role(self, name: RoleName) -> RoleSettings:
        """The settings of a role. The judge has those of `revelator` by default."""
        default = self.role("revelator") if name == "judge" else RoleSettings()
        return self.roles.get(name, default)

    @property
    def effective_roles(self) -> dict[RoleName, RoleSettings]:
        """The settings of `revelator` and `reader`, and of a judge that has its own."""
        return {
            name: self.role(name)
            for name in get_args(RoleName)
            if name != "judge" or name in self.roles
        }

    @property
    def own_key(self) -> SecretStr | None:
        """The key that commands send to a server."""
        return self.key or next(iter(self.server.keys), None)


def _gather(file: dict[str, Any], flags: dict[str, Any]) -> Settings:
    """Combine the sources: flags over environment over file. `Settings` itself reads no sources."""

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
            *_: Any,
            **__: Any,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, file)

    return Settings.model_validate(dict(Sources(**flags)))


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Load the settings from the file, the environment and `flags`, in ascending precedence.

    Flags have dotted names. Without `config`, `revelator.toml` in the working directory is read, if
    it exists. Raises ConfigurationError, which names the file, variable or setting and the problem.
    """
    _refuse_unknown_variables()
    path = config or Path("revelator.toml")
    file = {} if config is None and not path.is_file() else _read_file(path)
    given = _nested(flags or {})
    try:
        return _gather(file, given)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, given, file, path)) from None
    except SettingsError as error:
        raise ConfigurationError(
            f"settings: {error}; the variable of a section must be a JSON object: set one of its "
            f"settings, as in {PREFIX}SERVER__PORT=8080, with two underscores for a dot"
        ) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Settings file {path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(
            f"Settings file {path} cannot be read: {error.strerror}."
        ) from None


def _refuse_unknown_variables() -> None:
    """Refuse misspelt variables, which pydantic-settings ignores silently."""
    known = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields} | OWN_VARIABLES
    for name in os.environ:
        if name.startswith(PREFIX) and name.split("__")[0].upper() not in known:
            names = sorted(known - OWN_VARIABLES)
            close = get_close_matches(name.split("__")[0].upper(), names, 1)
            meant = (
                f"Did you mean {close[0]}?" if close else f"Settings begin with {', '.join(names)}."
            )
            raise ConfigurationError(f"The environment variable {name} is not a setting. {meant}")


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted names to nested dictionaries; None means a flag that was not given."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None:
            *parents, leaf = name.split(".")
            node = values
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
    return values


def _explain(
    error: ValidationError, flags: Mapping[str, Any], file: Mapping[str, Any], path: Path
) -> str:
    """Describe each invalid setting: its name, the problem, and where it was set."""
    lines = []
    for problem in error.errors():
        place, message = problem["loc"], message_of(problem)
        name = ".".join(map(str, place))
        if problem["type"] == "extra_forbidden":
            message = advice_on(Settings, place)
        elif problem["type"] in {"dict_type", "model_type"}:
            message = f"{message}. In a settings file, write it as the section [{name}]"
        variable = _variable(place)
        if _holds(flags, place):
            where = " (set by an option)"
        elif variable is not None:
            where = f" (set by {variable})"
        else:
            where = f" (in {path})" if _holds(file, place) else ""
        lines.append(f"{name}: {message}{where}")
    return "settings: " + "; ".join(lines)


def _holds(values: Any, place: Sequence[int | str]) -> bool:
    """Whether nested values contain `place`; places inside a list belong to the list."""
    for part in place:
        if isinstance(values, list):
            return True
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return bool(place)


def _variable(place: Sequence[int | str]) -> str | None:
    """Return the environment variable that sets `place`, a part of it, or what contains it."""
    wanted = f"{PREFIX}{'__'.join(map(str, place))}__".upper()
    for name, value in os.environ.items():
        own = f"{name}__".upper()
        is_setting = value and own.startswith(PREFIX) and name.upper() not in OWN_VARIABLES
        if is_setting and (own.startswith(wanted) or wanted.startswith(own)):
            return name
    return None


def advice_on(settings: type[BaseModel], place: Sequence[int | str]) -> str:
    """Return what to do about a setting at `place` that `settings` does not have."""
    section: Any = settings
    for part in place[:-1]:
        if issubclass(section, BaseModel) and part in section.model_fields:
            section = section_in(section.model_fields[str(part)].annotation) or section
    names = sorted(section.model_fields)
    close = get_close_matches(str(place[-1]), names, 1)
    meant = f"Did you mean {close[0]}?" if close else f"The settings here are {', '.join(names)}."
    return f"there is no such setting. {meant}"


def section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section in an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)
