"""The commands `synthesize` and `train`, which import their dependencies when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.options import Config, Data, begin, fail, run
from service.core.errors import RevelatorError


def synthesize(
    pipeline: Annotated[
        Literal["autorag", "hanrag", "efficientrag", "compound", "searcher"],
        typer.Argument(help="Paper whose data synthesis is run."),
    ],
    input: Annotated[
        Path, typer.Option(exists=True, readable=True, help="JSONL file with the input items.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            dir_okay=False,
            help="JSONL file to write. A report and a journal are written beside it.",
        ),
    ],
    teacher: Annotated[str, typer.Option(help="Name of an engine in the settings.")] = "default",
    model: Annotated[str | None, typer.Option(help="Model that the teacher's engine uses.")] = None,
    query_teacher: Annotated[
        str | None,
        typer.Option(
            help="Engine in the settings that writes the queries of `autorag`, in place of the "
            "teacher, as in the paper."
        ),
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Collection to search, for pipelines that search.")
    ] = None,
    templates: Annotated[
        str | None, typer.Option(help="Prompt templates of the rows: compact, full or a folder.")
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSONL file with questions that must not occur in the rows. May be repeated.",
        ),
    ] = None,
    heldout: Annotated[
        bool,
        typer.Option(
            "--heldout", help="Write test rows, from the items that are never used for training."
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of items.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Number of items processed at the same time.")
    ] = 8,
    seed: Annotated[int, typer.Option(help="Seed for all random choices.")] = 0,
    price_prompt: Annotated[float, typer.Option(help="Price per million prompt tokens.")] = 0.0,
    price_completion: Annotated[
        float, typer.Option(help="Price per million completion tokens.")
    ] = 0.0,
    config: Config = None,
    data: Data = None,
) -> None:
    """Create training data with a teacher model, as the papers describe.

    Running the same command again resumes an interrupted run.

    The exit code is 1 if no item produced a row; the report gives the reasons.
    """
    from service.workshop.synthesis.command import SynthesisOptions, synthesize_file  # noqa: PLC0415

    settings = begin("warning", config, data_dir=data)
    options = SynthesisOptions(
        input,
        output,
        teacher=teacher,
        model=model,
        query_teacher=query_teacher,
        collection=collection,
        templates=templates,
        exclude=tuple(exclude or ()),
        side="test" if heldout else "train",
        limit=limit,
        concurrency=concurrency,
        seed=seed,
        price_prompt=price_prompt,
        price_completion=price_completion,
    )
    report = run(lambda: synthesize_file(settings, pipeline, options))
    raise typer.Exit(0 if report.rows else 1)


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
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Value of one setting of the recipe, or of one argument of the Trainer of "
            "transformers. May be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run in --out.")
    ] = False,
) -> None:
    """Train a model: a language model, the router, or EfficientRAG's labeler and filter.

    To use several GPUs: accelerate launch --module service train RECIPE …
    """
    from service.workshop.recipes.run import train_recipe  # noqa: PLC0415

    try:
        train_recipe(
            recipe, data=data or [], held_out=held_out or [], out=out, resume=resume,
            preset=preset, file=settings, assignments=assignments or [],
        )  # fmt: skip
    except RevelatorError as error:
        fail(error.detail)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
