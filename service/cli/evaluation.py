"""The commands `evaluate`, `replay` and `explain`, which import their dependencies when they
run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import (
    Config,
    Data,
    Key,
    MaxSteps,
    RetrieverOption,
    Timeout,
    TopK,
    Url,
    begin,
    fail,
    given,
    run,
    show_error,
)
from service.core.errors import RevelatorError


def evaluate(
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET...",
            help="Files with questions and gold answers, as FILE or NAME=FILE: JSONL with "
            "`question` and `answer`, or the file of a published dataset.",
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods, separated by commas: a route (auto, direct, single, compound or "
            "complex), a loop, which then answers every question, ROUTE/LOOP, or all. Each but all "
            "may change top_k, max_steps, samples or retriever: one_retrieval@top_k=10. Default: "
            "auto. Loops: anrag, autorag, dragin, efficientrag, entropy_gate, fixed_length, "
            "fixed_sentence, flare, ircot, iter_retgen, margin_gate, no_retrieval, one_retrieval, "
            "searcher, self_ask, trend_gate."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine in the settings that all roles use. Default: as in the settings."
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Engine in the settings that judges, as an additional score, whether each answer "
            "is correct.",
        ),
    ] = None,
    robustness: Annotated[
        bool,
        typer.Option(
            "--robustness",
            help="Ask every question twelve more times, with poisoned passages among the search "
            "results, and add a table of robustness to the report. Needs --out.",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a Ray cluster whose machines answer the questions. `local` starts one "
            "on this machine.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for the results. Running the same command again continues an interrupted "
            "evaluation.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for the events of every question. `revelator replay` and `revelator "
            "explain` read them.",
        ),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            help="Collection to search: NAME for all datasets, or DATASET=NAME. May be repeated. "
            "Default: `default` if it exists, else `sample`."
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Format of the files: NAME for all datasets, or DATASET=NAME. May be repeated. "
            "Formats: squad, triviaqa, webquestions, flashrag, 2wiki, hotpotqa, musique, beir, "
            "hipporag, popqa, iirc, strategyqa, nq_open, jsonl. Default: detected from the content."
        ),
    ] = None,
    retriever: RetrieverOption = "hybrid",
    top_k: TopK = None,
    max_steps: MaxSteps = None,
    timeout_s: Timeout = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N questions of each dataset.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Number of questions answered at the same time.")
    ] = 4,
    gold_routes: Annotated[
        bool,
        typer.Option(
            "--gold-routes",
            help="Where a method leaves the choice of the route to the service, use the route that "
            "the dataset gives for each question.",
        ),
    ] = False,
    route_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATASET=ROUTE",
            help="Gold route of the questions for which the dataset gives none: ROUTE for all "
            "datasets, or DATASET=ROUTE. May be repeated.",
        ),
    ] = None,
    yes_no: Annotated[
        bool | None,
        typer.Option(
            help="Count F1 as 0 if exactly one of the answer and the gold answer is yes, no or "
            "noanswer. Default: as in the official script of the dataset.",
            show_default=False,
        ),
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Ask every failed question again. By default, only the questions that failed "
            "because an engine or a store was unavailable are asked again.",
        ),
    ] = False,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Take the method, the requests and the settings of a paper: hanrag, "
            "autorag-llama3, dragin-2wiki, dragin-hotpotqa, dragin-iirc, dragin-strategyqa or "
            "efficientrag. The report says what differs from the paper.",
        ),
    ] = None,
    note: Annotated[
        str | None, typer.Option(help="A note that the report shows beside the provenance.")
    ] = None,
    config: Config = None,
    data: Data = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Answer the questions of datasets by several methods, score the answers and compare them."""
    from service.evaluation.command import EvaluationOptions, evaluate_datasets  # noqa: PLC0415

    settings = begin("warning", config, data_dir=data, key=key)
    fields = given(retriever=retriever, top_k=top_k, max_steps=max_steps, timeout_s=timeout_s)
    options = EvaluationOptions(
        datasets,
        methods or ("auto",),
        collection or (),
        format or (),
        engine,
        fields,
        limit,
        concurrency,
        gold_routes,
        yes_no,
        retry_failed,
        out,
        trace,
        url,
        route_of or (),
        judge,
        robustness,
        ray,
        note,
        bundle,
    )
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
    from service.evaluation.traces import read_trace, shown_again  # noqa: PLC0415

    try:
        read = read_trace(trace)
    except RevelatorError as error:
        fail(error.detail)
    if body or events:
        typer.echo("\n".join(shown_again(read, only_body=body)))
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
