"""The commands `key` and `collections`, which import their dependencies when they run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from service.cli.options import fail, run, with_options
from service.core.settings import Settings
from service.options import Url

Name = Annotated[str, typer.Argument(help="Name of the collection.")]

collections = typer.Typer(
    help="List, show and delete collections. Uses the running server, if there is one.",
    no_args_is_help=True,
)


feedback = typer.Typer(help="What people said about answers.", no_args_is_help=True)


@feedback.callback()
def _feedback() -> None: ...


@feedback.command()
@with_options("error")
def export(settings: Settings) -> None:
    """Print questions whose right answer people named, as rows for `revelator evaluate`.

    An answer that was liked is right, unless another was expected. Only the latest word about an
    answer counts.
    """
    import orjson  # noqa: PLC0415

    from service.api.feedback import rows_for_evaluation  # noqa: PLC0415

    for row in rows_for_evaluation(settings.data_dir):
        typer.echo(orjson.dumps(row).decode())


@collections.command("list")
@with_options("error")
def list_all(settings: Settings, url: Url = None) -> None:
    """List all collections with their counts and embedding models."""
    from service.cli.upkeep import list_collections  # noqa: PLC0415

    run(lambda: list_collections(settings, url=url))


@collections.command()
@with_options("error")
def show(name: Name, settings: Settings, url: Url = None) -> None:
    """Show a collection's counts, metadata fields, text analysis and embedding model."""
    from service.cli.upkeep import show_collection  # noqa: PLC0415

    run(lambda: show_collection(settings, name, url=url))


@collections.command()
@with_options("error")
def delete(
    name: Name,
    settings: Settings,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete without asking for confirmation.")
    ] = False,
    url: Url = None,
) -> None:
    """Delete a collection with all its documents, including those in Elasticsearch and Qdrant."""
    from service.cli.upkeep import delete_collection  # noqa: PLC0415

    if not yes:
        typer.confirm(f"Delete collection {name} and all its documents?", abort=True)
    run(lambda: delete_collection(settings, name, url=url))


def key(
    name: Annotated[str, typer.Argument(help="Name of the tenant that the key is for.")],
    rights: Annotated[
        str, typer.Option(help="Rights of the key: ask, write and administer, separated by commas.")
    ] = "ask",
    collections: Annotated[
        str,
        typer.Option(
            help="Collections that the key may use: names or patterns, separated by commas."
        ),
    ] = "*",
    principals: Annotated[
        str,
        typer.Option(
            help="Users or groups, separated by commas: of documents with `access`, the key sees "
            "those that name one of them; `*`: all documents."
        ),
    ] = "",
    requests: Annotated[
        int | None, typer.Option(help="Maximum number of requests per minute.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="Maximum number of questions per minute.")
    ] = None,
) -> None:
    """Create an API key, and print its entry for the tenants file on standard output.

    The key itself is printed on standard error and is not stored. Example:
    `revelator key search-team --rights ask,write >> tenants.toml`, with `server.tenants_file` set.
    """
    from service.api.tenants import digest, new_key, parse_tenants  # noqa: PLC0415

    made = new_key()
    entry = "\n".join(
        [
            "[[tenants]]",
            f"name = {json.dumps(name, ensure_ascii=False)}",
            f"key_sha256 = {_listed(digest(made.encode()))}",
            f"collections = {_listed(collections)}",
            f"rights = {_listed(rights)}",
            *([f"principals = {_listed(principals)}"] if principals else []),
            *([f"requests_per_minute = {requests}"] if requests is not None else []),
            *([f"questions_per_minute = {questions}"] if questions is not None else []),
        ]
    )
    try:
        parse_tenants(entry)
    except ValueError as error:
        fail(f"the tenant's entry is not valid: {error}; correct the name or the options")
    typer.echo(entry)
    typer.echo(f"The key, shown only once: {made}", err=True)


def _listed(texts: str) -> str:
    parts = [part.strip() for part in texts.split(",")]
    return json.dumps([*filter(None, parts)], ensure_ascii=False)
