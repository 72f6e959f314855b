"""`revelator key` creates an API key and its entry for the tenants file."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import fail


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
            f"name = {_text(name)}",
            f"key_sha256 = [{_text(digest(made.encode()))}]",
            f"collections = [{_texts(collections)}]",
            f"rights = [{_texts(rights)}]",
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


def _texts(listed: str) -> str:
    return ", ".join(_text(part.strip()) for part in listed.split(",") if part.strip())


def _text(value: str) -> str:
    import json  # noqa: PLC0415

    return json.dumps(value, ensure_ascii=False)
