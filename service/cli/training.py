"""The command `revelator train`; its dependencies are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.options import fail
from service.core.errors import ConfigurationError, RevelatorError

RecipeName = Literal["sft", "router", "reader", "labeler", "filter"]


def train(
    recipe: Annotated[
        RecipeName,
        typer.Argument(
            help="Model to train: sft (a language model), router, reader, labeler or filter "
            "(EfficientRAG's encoders)."
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File written by `synthesize`; for router also a folder of questions and "
            "passages, or of an evaluation. May be repeated."
        ),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="File with rows that are used for evaluation only. May be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the checkpoint.")] = None,
    settings: Annotated[
        Path | None, typer.Option(help="TOML file with settings of the recipe.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset of settings, such as hanrag or autorag.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Value of one setting. May be repeated."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run in --out.")
    ] = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="Train on a small generated dataset. Fails if the model does not learn it.",
        ),
    ] = False,
) -> None:
    """Train a model: a language model, the router, or EfficientRAG's labeler and filter.

    To use several GPUs: accelerate launch --module service train RECIPE …
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
        fail(error.detail)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
