"""The options of `revelator evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from service.options import AskOptions, Url


@dataclass(frozen=True)
class EvaluationOptions(AskOptions):
    """The options; those of `AskOptions` are request fields that all methods share."""

    datasets: Annotated[
        list[str],
        Argument(
            metavar="DATASET...",
            help="Files with questions and gold answers, as FILE or NAME=FILE: JSONL with "
            "`question` and `answer`, or the file of a published dataset.",
        ),
    ]
    methods: Annotated[
        list[str],
        Option(
            help="Methods, separated by commas: a route (auto, direct, single, compound or "
            "complex), a loop, which then answers every question, ROUTE/LOOP, or all. Each but all "
            "may change top_k, max_steps, samples or retriever: one_retrieval@top_k=10. "
            "Loops: anrag, autorag, dragin, efficientrag, entropy_gate, fixed_length, "
            "fixed_sentence, flare, ircot, iter_retgen, margin_gate, no_retrieval, one_retrieval, "
            "searcher, self_ask, trend_gate."
        ),
    ] = field(default_factory=lambda: ["auto"])
    engine: Annotated[
        str | None,
        Option(help="Engine in the settings that all roles use. Default: as in the settings."),
    ] = None
    judge: Annotated[
        str | None,
        Option(
            metavar="ENGINE",
            help="Engine in the settings that judges, as an additional score, whether each answer "
            "is correct.",
        ),
    ] = None
    robustness: Annotated[
        bool,
        Option(
            "--robustness",
            help="Ask every question twelve more times, with poisoned passages among the search "
            "results, and add a table of robustness to the report. Needs --out.",
        ),
    ] = False
    ray: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Address of a Ray cluster whose machines answer the questions. `local` starts one "
            "on this machine.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            file_okay=False,
            help="Folder for the results. Running the same command again continues an interrupted "
            "evaluation.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option(
            file_okay=False,
            help="Folder for the events of every question. `revelator replay` and `revelator "
            "explain` read them.",
        ),
    ] = None
    collections: Annotated[
        list[str],
        Option(
            "--collection",
            help="Collection to search: NAME for all datasets, or DATASET=NAME. May be repeated. "
            "Default: `default` if it exists, else `sample`.",
        ),
    ] = field(default_factory=list)
    formats: Annotated[
        list[str],
        Option(
            "--format",
            help="Format of the files: NAME for all datasets, or DATASET=NAME. May be repeated. "
            "Formats: squad, triviaqa, webquestions, flashrag, 2wiki, hotpotqa, musique, beir, "
            "hipporag, popqa, iirc, strategyqa, nq_open, jsonl. Default: detected by the content.",
        ),
    ] = field(default_factory=list)
    limit: Annotated[
        int | None, Option(min=1, help="Use only the first N questions of each dataset.")
    ] = None
    concurrency: Annotated[
        int, Option(min=1, help="Number of questions answered at the same time.")
    ] = 4
    gold_routes: Annotated[
        bool,
        Option(
            "--gold-routes",
            help="Where a method leaves the choice of the route to the service, use the route that "
            "the dataset gives for each question.",
        ),
    ] = False
    routes: Annotated[
        list[str],
        Option(
            "--route-of",
            metavar="DATASET=ROUTE",
            help="Gold route of the questions for which the dataset gives none: ROUTE for all "
            "datasets, or DATASET=ROUTE. May be repeated.",
        ),
    ] = field(default_factory=list)
    yes_no: Annotated[
        bool | None,
        Option(
            help="Count F1 as 0 if exactly one of the answer and the gold answer is yes, no or "
            "noanswer. Default: as in the official script of the dataset.",
            show_default=False,
        ),
    ] = None
    retry_failed: Annotated[
        bool,
        Option(
            "--retry-failed",
            help="Ask every failed question again. By default, only the questions that failed "
            "because an engine or a store was unavailable are asked again.",
        ),
    ] = False
    bundle: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Take the method, the requests and the settings of a paper: hanrag, "
            "autorag-llama3, dragin-2wiki, dragin-hotpotqa, dragin-iirc, dragin-strategyqa or "
            "efficientrag. The report says what differs from the paper.",
        ),
    ] = None
    note: Annotated[
        str | None, Option(help="A note that the report shows beside the provenance.")
    ] = None
    url: Url = None
