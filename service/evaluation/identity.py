"""The settings that an evaluation ran with, as recorded in its folder without secrets."""

from __future__ import annotations

from typing import Any, Final

from pydantic import SecretStr

from service.core.errors import InvalidRequest
from service.core.settings import Settings
from service.core.settings.urls import shown

# The data directory and the server's settings do not change an answer.
_LEFT_OUT: Final = {"data_dir", "server"}


def described(settings: Settings) -> dict[str, Any]:
    """Return the settings that answers depend on as JSON, without secrets and without credentials
    in URLs."""
    plain: dict[str, Any] = _plain(settings.model_dump(mode="python", exclude=_LEFT_OUT))
    return plain


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
    unknown."""
    if name is None:
        return settings
    if name not in settings.engines:
        raise InvalidRequest(
            f"--engine {name!r} is not in the settings; the engines are "
            f"{', '.join(sorted(settings.engines))}"
        )
    roles = {
        role: own.model_copy(update={"engine": name})
        for role, own in settings.roles
        if own is not None
    }
    return settings.model_copy(update={"roles": settings.roles.model_copy(update=roles)})
