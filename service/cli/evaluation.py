"""The commands `evaluate`, `replay` and `explain`, which import their dependencies when they
run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import fail, run, show_error, with_options
from service.core.errors import RevelatorError
from service.core.settings import Settings
from service.evaluation.options import EvaluationOptions


@with_options()
def evaluate(options: EvaluationOptions, settings: Settings) -> None:
    """Answer the questions of datasets by several methods, score the answers and compare them."""
    from service.evaluation.command import evaluate_datasets  # noqa: PLC0415

    raise typer.Exit(run(lambda: evaluate_datasets(settings, options)))


TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="File written by `ask --trace` or `evaluate --trace`."),
]


def replay(
    trace: TraceFile,
    body: Annotated[
        bool, typer.Option("--body", help="Print the answer's body, computed from the events.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Print the events as recorded, one per line.")
    ] = False,
) -> None:
    """Print a recorded question as `revelator ask` does, without calling a model or searching."""
    from rich.console import Console  # noqa: PLC0415

    from service.cli.terminal import EventPrinter  # noqa: PLC0415
    from service.evaluation.traces import read_trace  # noqa: PLC0415

    try:
        read = read_trace(trace)
    except RevelatorError as error:
        fail(error.detail)
    if body or events:
        shown = [read.result] if body else read.events
        typer.echo("\n".join(line.model_dump_json() for line in shown))
        return
    printer = EventPrinter(Console())
    for event in read.events:
        printer.show(event)


def explain(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Folders written by `evaluate --trace`, or files in them."
        ),
    ],
) -> None:
    """Show where recorded questions spent their time, and which stage caused a wrong answer.

    The stages are routing, query, retrieval, judging, reading and merging. Fixed rules find the
    stage, without calling a model, and the evidence is printed. A trace that cannot be read does
    not end the command; its error is printed, and the exit code is 2.
    """
    from service.evaluation.explanation import explain_trace  # noqa: PLC0415
    from service.evaluation.traces import find_traces, read_trace  # noqa: PLC0415

    try:
        paths = find_traces(traces)
    except RevelatorError as error:
        fail(error.detail)
    exit_code = 0
    for path in paths:
        try:
            typer.echo("\n".join(explain_trace(read_trace(path))[1]))
        except RevelatorError as error:
            show_error(error.detail)
            exit_code = 2
    raise typer.Exit(exit_code)
