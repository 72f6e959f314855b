"""What every command of `revelator` shares: options, settings, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from service.errors import RevelatorError
from service.settings import Settings, load_settings

T = TypeVar("T")

Config = Annotated[
    Path | None,
    typer.Option(envvar="REVELATOR_CONFIG", help="Settings file; else ./revelator.toml if there."),
]
Data = Annotated[Path | None, typer.Option("--data", help="Data directory (REVELATOR_DATA_DIR).")]
Url = Annotated[str | None, typer.Option(help="Go through the server at this URL.")]


def fail(detail: str) -> NoReturn:
    """Say what is wrong on standard error and leave with exit code 2."""
    typer.secho(f"revelator: {detail}", err=True, fg="red")
    raise typer.Exit(2)


def settings_from(config: Path | None, **flags: Any) -> Settings:
    """The settings under file, environment and flags (dotted names with `__`)."""
    named = {name.replace("__", "."): value for name, value in flags.items()}
    try:
        return load_settings(config, named)
    except RevelatorError as error:
        fail(error.detail)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run async work; expected failures become one line and exit code 2, Ctrl-C exit code 130."""
    import anyio  # noqa: PLC0415

    try:
        return anyio.run(work)
    except RevelatorError as error:
        fail(error.detail)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
