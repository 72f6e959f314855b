"""The settings that an evaluation ran with, as recorded in its folder without secrets."""

from __future__ import annotations

from typing import Any, Final

from pydantic import SecretStr

from service.core.errors import InvalidRequest
from service.core.settings import RoleSettings, Settings
from service.core.settings.urls import shown

# These settings do not change an answer.
_LEFT_OUT: Final = {"data_dir", "server", "tracing"}


def described(settings: Settings) -> dict[str, Any]:
    """Return the settings that answers depend on as JSON, without secrets and without credentials
    in URLs."""
    plain: dict[str, Any] = _plain(settings.model_dump(mode="python", exclude=_LEFT_OUT))
    used = {own["engine"] for own in plain["roles"].values() if own}
    return plain | {
        "engines": {name: own for name, own in plain["engines"].items() if name in used}
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(name): _plain(own) for name, own in value.items() if not isinstance(own, SecretStr)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(own) for own in value if not isinstance(own, SecretStr)]
    if isinstance(value, str):
        return shown(value) if value.startswith(("http://", "https://")) else value
    return value if isinstance(value, bool | int | float | None) else str(value)


def with_engine(settings: Settings, name: str | None) -> Settings:
    """Return the settings with one engine for all roles. Raises InvalidRequest if the name is
    unknown.

    A role whose engine changes loses its model, adapter and templates, which belong to the other
    engine.
    """
    if name is None:
        return settings
    if name not in settings.engines:
        raise InvalidRequest(
            f"--engine {name!r} is not in the settings; the engines are "
            f"{', '.join(sorted(settings.engines))}"
        )
    roles = {
        role: RoleSettings(engine=name)
        for role, own in settings.roles
        if own is not None and own.engine != name
    }
    return settings.model_copy(update={"roles": settings.roles.model_copy(update=roles)})
