"""The command `revelator train`; its dependencies are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.core.errors import ConfigurationError, RevelatorError

RecipeName = Literal["sft", "router", "labeler", "filter"]


def train(  # noqa: PLR0913, PLR0917 - a command's options are its parameters
    recipe: Annotated[RecipeName, typer.Argument(help="What is trained.")],
    data: Annotated[
        list[Path] | None, typer.Option(help="What `synthesize` wrote; may be repeated.")
    ] = None,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="Rows that only measure; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the checkpoint.")] = None,
    settings: Annotated[Path | None, typer.Option(help="The recipe's settings (TOML).")] = None,
    preset: Annotated[str | None, typer.Option(help="Of a paper: hanrag, autorag, …")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="Train on tiny made-up data; fails if nothing is learnt."),
    ] = False,
) -> None:
    """Train a model: a language model, the router, or EfficientRAG's labeler and filter.

    Many GPUs: accelerate launch --module service train RECIPE …
    """
    from service.workshop.recipes.run import smoke_recipe, train_recipe  # noqa: PLC0415

    try:
        if smoke:
            if data or held_out or settings or preset or assignments:
                raise ConfigurationError(
                    "--smoke uses made-up data and fixed settings; of the other options, it "
                    "accepts --out and --resume only"
                )
            raise typer.Exit(smoke_recipe(recipe, out, resume=resume))
        train_recipe(
            recipe, out=out, resume=resume, preset=preset, file=settings,
            flags={"data": data, "held_out": held_out}, assignments=assignments or [],
        )  # fmt: skip
    except RevelatorError as error:
        typer.secho(f"revelator: {error.detail}", err=True, fg="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
