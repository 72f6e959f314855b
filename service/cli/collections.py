"""The subcommands of `revelator collections`, which import their dependencies when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Config, Data, Key, Url, run, settings_from

Name = Annotated[str, typer.Argument(help="Name of the collection.")]

collections = typer.Typer(
    help="List, show and delete collections. Uses the running server, if there is one.",
    no_args_is_help=True,
)


@collections.command("list")
def list_all(config: Config = None, data: Data = None, url: Url = None, key: Key = None) -> None:
    """List all collections with their counts and embedding models."""
    from service.retrieval.commands import list_collections  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    settings = settings_from(config, data_dir=data, key=key)
    run(lambda: list_collections(settings, url=url))


@collections.command()
def show(
    name: Name, config: Config = None, data: Data = None, url: Url = None, key: Key = None
) -> None:
    """Show a collection's counts, metadata fields, text analysis and embedding model."""
    from service.retrieval.commands import show_collection  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    settings = settings_from(config, data_dir=data, key=key)
    run(lambda: show_collection(settings, name, url=url))


@collections.command()
def delete(
    name: Name,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete without asking for confirmation.")
    ] = False,
    config: Config = None,
    data: Data = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Delete a collection with all its documents, including those in Elasticsearch and Qdrant."""
    from service.retrieval.commands import delete_collection  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    settings = settings_from(config, data_dir=data, key=key)
    if not yes:
        typer.confirm(f"Delete collection {name} and all its documents?", abort=True)
    run(lambda: delete_collection(settings, name, url=url))
