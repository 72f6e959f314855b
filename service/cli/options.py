"""Options, settings and exit codes that all `revelator` commands share."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_origin, get_type_hints

import typer

from service.core.connections import trust
from service.core.errors import RevelatorError
from service.core.settings import Settings, load_settings
from service.options import Url
from service.retrieval.base import Analysis

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


@dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """Options of `ingest`: where the documents go, and how."""

    collection: Annotated[
        str, typer.Option(help="Collection to fill. It is created if it does not exist.")
    ]
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the collection's contents atomically.")
    ] = False
    format: Annotated[
        str | None,
        typer.Option(
            help="Format of the files: jsonl, parquet, dpr, text, html, pdf, docx, csv, xlsx, pptx "
            "or image; hotpotqa, 2wiki or musique for the passages in these question files. "
            "Default: detected per file."
        ),
    ] = None
    access: Annotated[
        list[str],
        typer.Option(
            help="Who may see these documents: a user or a group; repeat the option for more. "
            "Documents with a field `access` keep it. Default: everyone."
        ),
    ] = field(default_factory=list)
    analysis: Annotated[
        Analysis | None,
        typer.Option(
            metavar="LANGUAGE",
            help="Language of a new collection's words for BM25, such as german, or simple for "
            "words as they are. Default: that of the first documents if it is clear, else english.",
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Embed on this Ray cluster (host:port, or auto); `local` starts one on this "
            "machine.",
        ),
    ] = None
    url: Url = None


def fail(detail: str) -> NoReturn:
    """Print the error on standard error and exit with code 2."""
    show_error(detail)
    raise typer.Exit(2)


def show_error(detail: str) -> None:
    """Print the error on standard error."""
    text = f"revelator: {detail}"
    typer.echo(text if os.environ.get("NO_COLOR") else typer.style(text, fg="red"), err=True)


def begin(
    level: str, config: Config = None, data: Data = None, key: Key = None, **flags: Any
) -> Settings:
    """Log from this level on, and load the settings from file, environment and flags. In the name
    of a flag, `__` stands for a dot."""
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging(level)
    named = {name.replace("__", "."): value for name, value in flags.items()}
    try:
        settings = load_settings(config, {"data_dir": data, "key": key, **named})
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
            for signum in before:
                signal.signal(signum, leave)
            loop.call_soon_threadsafe(task.cancel)

        heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, first) for number in heard}
        try:
            return await work()
        finally:
            for number, handler in before.items() if not code else ():
                signal.signal(number, handler)

    try:
        return anyio.run(interruptible)
    except RevelatorError as error:
        fail(error.detail)
    except (KeyboardInterrupt, asyncio.CancelledError):
        # Python waits for its threads now. A handler of its own may be called late there: a signal
        # that comes just before a wait does not end the wait.
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        typer.echo(interrupted, err=True)
        raise typer.Exit(code or 130) from None


def with_options(level: str = "warning") -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make options of a command's parameters: of a dataclass its fields that are annotated as
    options or arguments; of the settings the options of `begin`, with --key beside --url only."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        options: dict[str, Parameter] = {}
        made: dict[str, tuple[Callable[..., Any], Iterable[str]]] = {}
        for name, parameter in signature(command, eval_str=True).parameters.items():
            if parameter.annotation is Settings:
                _, *parameters, _ = signature(begin, eval_str=True).parameters.values()
                made[name] = partial(begin, level), [option.name for option in parameters]
            elif is_dataclass(kind := parameter.annotation) and isinstance(kind, type):
                parameters = _options_of(kind)
                made[name] = kind, [option.name for option in parameters]
            else:
                parameters = [parameter]
            options |= {
                option.name: option.replace(kind=Parameter.KEYWORD_ONLY) for option in parameters
            }
        if "url" not in options:
            options.pop("key", None)

        @wraps(command)
        def run(**values: Any) -> T:
            for name, (make, parts) in made.items():
                values[name] = make(**{part: values.pop(part) for part in parts if part in values})
            return command(**values)

        run.__signature__ = Signature([*options.values()])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate


def _options_of(kind: type[Any]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(option.name, Parameter.KEYWORD_ONLY, annotation=hint, default=_default(option))
        for option in fields(kind)
        if get_origin(hint := hints[option.name]) is Annotated
    ]


def _default(of: Field[Any]) -> Any:
    if of.default_factory is not MISSING:
        return of.default_factory()
    return Parameter.empty if of.default is MISSING else of.default
