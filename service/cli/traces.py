"""`revelator replay` and `revelator explain`: read traces, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import fail
from service.core.errors import RevelatorError

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="File that `evaluate --trace` wrote."),
]


def replay(
    trace: TraceFile,
    body: Annotated[
        bool, typer.Option("--body", help="Print the answer's body instead of the events.")
    ] = False,
) -> None:
    """Print the events of a kept question again, without model or index.

    Each line is an event as it was, byte for byte. The body is made again from them.
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
        typer.Argument(metavar="TRACE...", help="Files that `evaluate --trace` wrote, or folders."),
    ],
) -> None:
    """Say where the time of kept questions went, and where their errors came from.

    The stages are routing, query, retrieval, judging, reading and merging. Rules decide, and the
    evidence is printed.
    """
    from service.evaluation.explanation import explain_trace, lines_of  # noqa: PLC0415
    from service.evaluation.traces import find_traces, read_trace  # noqa: PLC0415

    try:
        for path in find_traces(traces):
            trace = read_trace(path)
            typer.echo("\n".join(lines_of(trace, explain_trace(trace))))
    except RevelatorError as error:
        fail(error.detail)
