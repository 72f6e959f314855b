"""The commands below `revelator collections`; what they need is imported when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli_options import Config, Data, Url, run, settings_from

Name = Annotated[str, typer.Argument(help="The collection's name.")]

collections = typer.Typer(
    help="List, show and delete collections; through the running server where there is one.",
    no_args_is_help=True,
)


@collections.command("list")
def list_all(config: Config = None, data: Data = None, url: Url = None) -> None:
    """List every collection with its counts and its embedding model."""
    from service.retrieval.catalog.collections_command import list_collections  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    settings = settings_from(config, data_dir=data)
    run(lambda: list_collections(settings, url=url))


@collections.command()
def show(name: Name, config: Config = None, data: Data = None, url: Url = None) -> None:
    """Show a collection's counts, metadata fields, analysis and embedding model."""
    from service.retrieval.catalog.collections_command import show_collection  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    settings = settings_from(config, data_dir=data)
    run(lambda: show_collection(settings, name, url=url))


@collections.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
    config: Config = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Delete a collection with all its documents, also from Elasticsearch and Qdrant."""
    from service.retrieval.catalog.collections_command import delete_collection  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    settings = settings_from(config, data_dir=data)
    if not yes:
        typer.confirm(f"Delete collection {name} with all its documents?", abort=True)
    run(lambda: delete_collection(settings, name, url=url))
