"""The commands `synthesize` and `train`, which import their dependencies when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.options import fail, run, with_options
from service.core.errors import RevelatorError
from service.core.settings import Settings
from service.workshop.synthesis.options import PipelineName, SynthesisOptions


@with_options()
def synthesize(
    options: SynthesisOptions,
    pipeline: Annotated[PipelineName, typer.Argument(help="Paper whose data synthesis is run.")],
    settings: Settings,
) -> None:
    """Create training data with a teacher model, as the papers describe.

    Running the same command again resumes an interrupted run.

    The exit code is 1 if no item produced a row; the report gives the reasons.
    """
    from service.workshop.synthesis.command import synthesize_file  # noqa: PLC0415

    report = run(lambda: synthesize_file(settings, pipeline, options))
    raise typer.Exit(0 if report.rows else 1)


RecipeName = Literal["sft", "router", "extractor", "labeler", "filter"]


def train(
    recipe: Annotated[
        RecipeName,
        typer.Argument(
            help="Model to train: sft (a language model), router, reader, labeler or filter "
            "(EfficientRAG's encoders)."
        ),
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            help="File written by `synthesize`; for router also a folder of questions and "
            "passages, or of an evaluation. May be repeated."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="File with rows that are used for evaluation only. May be repeated."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset of settings, such as hanrag or autorag.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Value of one setting of the recipe, or of one argument of the Trainer of "
            "transformers. May be repeated.",
        ),
    ] = None,
) -> None:
    """Train a model: a language model, the router, or EfficientRAG's labeler and filter.

    Running the same command again continues an interrupted run.

    To use several GPUs: accelerate launch --module service train RECIPE …
    """
    from service.workshop.recipes.run import train_recipe  # noqa: PLC0415

    try:
        train_recipe(
            recipe, data=data, held_out=held_out or [], out=out,
            preset=preset, assignments=assignments or [],
        )  # fmt: skip
    except RevelatorError as error:
        fail(error.detail)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
