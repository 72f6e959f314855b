"""Options, settings and exit codes that all `revelator` commands share."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_args

import typer

from service.answer.request import AnswerRequest
from service.core.connections import trust
from service.core.domain import RequestLoop
from service.core.errors import RevelatorError
from service.core.settings import Settings, load_settings
from service.core.settings.urls import checked

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


def _checked_url(url: str | None) -> str | None:
    try:
        return checked(url) if url else None
    except ValueError as error:
        raise typer.BadParameter(f"{error}, such as http://127.0.0.1:8000") from None


Url = Annotated[str | None, typer.Option(callback=_checked_url, help="Use the server at this URL.")]


def _field(name: str) -> Any:
    """Return an option for a field of a request, with the description of the field as help."""
    return typer.Option(help=AnswerRequest.model_fields[name].description)


Collection = Annotated[str | None, _field("collection")]
RouteOption = Annotated[str, typer.Option(help="Route: auto, direct, single, compound or complex.")]
LoopOption = Annotated[
    str,
    typer.Option(
        help="Loop that decides when to search, on every route except direct: "
        f"{', '.join(get_args(RequestLoop))}."
    ),
]
RetrieverOption = Annotated[str, typer.Option(help="Retriever: hybrid, bm25 or dense.")]
TopK = Annotated[int | None, _field("top_k")]
MaxSteps = Annotated[int | None, _field("max_steps")]
Timeout = Annotated[float | None, _field("timeout_s")]


def given(**fields: Any) -> dict[str, Any]:
    """Return the request fields that were given, without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


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
