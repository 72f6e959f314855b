"""The command `revelator synthesize`, which imports its dependencies when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.options import Config, Data, run, settings_from


def synthesize(
    pipeline: Annotated[
        Literal["autorag", "hanrag", "efficientrag", "compound"],
        typer.Argument(help="Paper whose data synthesis is run."),
    ],
    input: Annotated[
        Path,
        typer.Option(
            exists=True,
            readable=True,
            help="JSONL file with the input items.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            dir_okay=False,
            help="JSONL file to write. A report and a journal are written beside it.",
        ),
    ],
    teacher: Annotated[
        str,
        typer.Option(help="Name of an engine in the settings."),
    ] = "default",
    model: Annotated[str | None, typer.Option(help="Model that the teacher's engine uses.")] = None,
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
    from service.telemetry.logs import configure_logging  # noqa: PLC0415
    from service.workshop.synthesis.command import SynthesisOptions, synthesize_file  # noqa: PLC0415
    from service.workshop.synthesis.report import Prices  # noqa: PLC0415

    configure_logging("warning")
    settings = settings_from(config, data_dir=data)
    options = SynthesisOptions(
        input,
        output,
        teacher=teacher,
        model=model,
        collection=collection,
        templates=templates,
        exclude=tuple(exclude or ()),
        side="test" if heldout else "train",
        limit=limit,
        concurrency=concurrency,
        seed=seed,
        prices=Prices(price_prompt, price_completion),
    )
    report = run(lambda: synthesize_file(settings, pipeline, options))
    raise typer.Exit(0 if report.rows else 1)
