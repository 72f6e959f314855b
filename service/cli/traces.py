"""The commands `revelator replay` and `revelator explain`, which only read traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import fail, show_error
from service.core.errors import RevelatorError

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="File written by `ask --trace` or `evaluate --trace`."),
]


def replay(
    trace: TraceFile,
    body: Annotated[
        bool, typer.Option("--body", help="Print the answer's body instead of the events.")
    ] = False,
) -> None:
    """Print the events of a recorded question, without calling a model or searching.

    Events are printed exactly as they were recorded, one per line. The body is computed from them.
    """
    from service.evaluation.traces import read_trace, shown_again  # noqa: PLC0415

    try:
        for line in shown_again(read_trace(trace), only_body=body):
            typer.echo(line)
    except RevelatorError as error:
        fail(error.detail)


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
    from service.evaluation.explanation import explain_trace, lines_of  # noqa: PLC0415
    from service.evaluation.traces import find_traces, read_trace  # noqa: PLC0415

    try:
        paths = find_traces(traces)
    except RevelatorError as error:
        fail(error.detail)
    exit_code = 0
    for path in paths:
        try:
            trace = read_trace(path)
            typer.echo("\n".join(lines_of(trace, explain_trace(trace))))
        except RevelatorError as error:
            show_error(error.detail)
            exit_code = 2
    raise typer.Exit(exit_code)
