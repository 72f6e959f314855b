"""Options, settings and exit codes that all `revelator` commands share."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_origin, get_type_hints

import typer

from service.core.connections import trust
from service.core.errors import RevelatorError
from service.core.settings import Settings, load_settings

T = TypeVar("T")

ENDING: Final = (signal.SIGINT, signal.SIGTERM)

Config = Annotated[
    Path | None,
    typer.Option(
        envvar="REVELATOR_CONFIG", help="Settings file. Default: ./revelator.toml, if it exists."
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Data directory. Also set by REVELATOR_DATA_DIR.")
]
Key = Annotated[
    str | None,
    typer.Option(
        help="API key for the server. Also set by REVELATOR_KEY, which other users cannot see."
    ),
]


def fail(detail: str) -> NoReturn:
    """Print the error on standard error and exit with code 2."""
    show_error(detail)
    raise typer.Exit(2)


def show_error(detail: str) -> None:
    """Print the error on standard error."""
    text = f"revelator: {detail}"
    typer.echo(text if os.environ.get("NO_COLOR") else typer.style(text, fg="red"), err=True)


def settings_from(config: Path | None, **flags: Any) -> Settings:
    """Load the settings from file, environment and flags. In the name of a flag, `__` stands for a
    dot."""
    named = {name.replace("__", "."): value for name, value in flags.items()}
    try:
        return load_settings(config, named)
    except RevelatorError as error:
        fail(error.detail)


def begin(level: str, config: Path | None, **flags: Any) -> Settings:
    """Log from this level on, and load the settings as `settings_from` does."""
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging(level)
    settings = settings_from(config, **flags)
    try:
        trust(settings.ca_files)
    except RevelatorError as error:
        fail(error.detail)
    return settings


def run(work: Callable[[], Awaitable[T]], interrupted: str = "Interrupted.") -> T:
    """Run async work and return its result.

    An expected error prints one line and exits with code 2. Ctrl-C cancels the work, prints
    `interrupted` and exits with code 130, SIGTERM does so with 143; a second signal does not wait
    for the work to end.
    """
    import anyio  # noqa: PLC0415

    code = 0  # by which shells name the signal

    def leave(number: int, _: object) -> None:
        os.write(2, f"{interrupted}\n".encode())
        os._exit(128 + number)  # stores survive this, and an exception here would be a traceback

    async def interruptible() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def first(number: int, _: object) -> None:
            nonlocal code
            code = 128 + number
            for each in before:
                signal.signal(each, leave)
            loop.call_soon_threadsafe(task.cancel)

        heard = [each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN]
        before = {each: signal.signal(each, first) for each in heard}
        try:
            return await work()
        finally:
            for each, handler in before.items() if not code else ():
                signal.signal(each, handler)

    try:
        return anyio.run(interruptible)
    except RevelatorError as error:
        fail(error.detail)
    except (KeyboardInterrupt, asyncio.CancelledError):
        # Python waits for its threads now. A handler of its own may be called late there: a signal
        # that comes just before a wait does not end the wait.
        for each in ENDING:
            signal.signal(each, signal.SIG_DFL)
        typer.echo(interrupted, err=True)
        raise typer.Exit(code or 130) from None


def with_options(kind: type[Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the fields of `kind`, a dataclass, that are annotated as options or arguments.
    It gets them as its first parameter, an instance of `kind`; the others are options of its
    own."""
    hints = get_type_hints(kind, include_extras=True)
    given = {
        each.name: Parameter(
            each.name, Parameter.KEYWORD_ONLY, annotation=hints[each.name],
            default=_default(each),
        )
        for each in fields(kind)
        if get_origin(hints[each.name]) is Annotated
    }  # fmt: skip

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        _, *own = signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def run(**values: Any) -> T:
            return command(kind(**{name: values.pop(name) for name in given}), **values)

        own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
        run.__signature__ = Signature([*given.values(), *own])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default
