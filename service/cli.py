"""The command `revelator`. Commands import what they need when they run: `--help` stays quick."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from service import __version__
from service.cli_collections import collections
from service.cli_options import Config, Data, Url, fail, run, settings_from
from service.errors import RevelatorError
from service.training.command import train
from service.training.compiling.command import compile_model

app = typer.Typer(
    name="revelator",
    help="Answers questions that one search cannot, over your own passages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Collection = Annotated[str | None, typer.Option(help="Collection; else default, else sample.")]
RouteOption = Annotated[str, typer.Option(help="auto, direct, single, compound or complex.")]
LoopOption = Annotated[str, typer.Option(help="default, or the name of a loop.")]
RetrieverOption = Annotated[str, typer.Option(help="hybrid, bm25 or dense.")]
TopK = Annotated[int | None, typer.Option(help="Passages shown to the reader per retrieval.")]
MaxSteps = Annotated[int | None, typer.Option(help="Most steps of a loop.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Answers questions that one search cannot, over your own passages."""


@app.command()
def serve(
    config: Config = None,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Default 8000; 0 takes a free one.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Allow any host without keys.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Serve answers over HTTP. With no settings: everything embedded, over a sample corpus."""
    from service.banner import print_banner  # noqa: PLC0415
    from service.serving import run_server  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging(log_level)
    settings = settings_from(
        config, data_dir=data, server__host=host, server__port=port, server__insecure=insecure
    )
    try:
        run_server(settings, on_started=print_banner)
    except RevelatorError as error:
        fail(error.detail)


@app.command()
def ask(
    question: str,
    config: Config = None,
    data: Data = None,
    url: Url = None,
    collection: Collection = None,
    route: RouteOption = "auto",
    loop: LoopOption = "default",
    retriever: RetrieverOption = "hybrid",
    top_k: TopK = None,
    max_steps: MaxSteps = None,
    timeout_s: Annotated[float | None, typer.Option(help="Seconds for the answer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the body, nothing else.")] = False,
) -> None:
    """Ask a question and watch its steps; through the running server where there is one."""
    from service.asking import ask_in_terminal  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("warning")
    settings = settings_from(config, data_dir=data)
    fields = {
        "question": question,
        "collection": collection,
        "route": route,
        "loop": loop,
        "retriever": retriever,
        "top_k": top_k,
        "max_steps": max_steps,
        "timeout_s": timeout_s,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    code = run(lambda: ask_in_terminal(settings, given, url=url, as_json=as_json))
    raise typer.Exit(code)


@app.command()
def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders; - is standard input. JSONL, Parquet, DPR's Wikipedia "
            "(psgs_w100.tsv), a BEIR folder, HippoRAG's JSON, text or Markdown; .gz and .zst.",
        ),
    ],
    collection: Annotated[str, typer.Option(help="Collection to fill; made if missing.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Take the place of all it holds, at once, when all is in."),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            help="jsonl, parquet, dpr, beir, hipporag or text; else each file tells its own."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Read, chunk and embed on this Ray (host:port, or auto); local starts one here.",
        ),
    ] = None,
    config: Config = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Put files into a collection. Repeating or resuming it does only what is missing.

    Bad rows are named with file and line; the rest goes in. Of one id twice the later stays.
    """
    from service.retrieval.ingesting.command import run_ingest  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("warning")
    settings = settings_from(config, data_dir=data)
    code = run(
        lambda: run_ingest(
            files, collection, settings, url=url, format=format, ray=ray, replace=replace
        )
    )
    raise typer.Exit(code)


@app.command()
def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, readable=True, help="JSONL: question, answer or answers."
        ),
    ],
    config: Config = None,
    data: Data = None,
    collection: Collection = None,
    route: RouteOption = "auto",
    loop: LoopOption = "default",
    retriever: RetrieverOption = "hybrid",
    top_k: TopK = None,
    max_steps: MaxSteps = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
    out: Annotated[Path | None, typer.Option(help="Write a row per question here (JSONL).")] = None,
) -> None:
    """Ask every question of a file and score the answers."""
    from service.evaluation.command import evaluate_file  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("warning")
    settings = settings_from(config, data_dir=data)
    fields = {
        "collection": collection,
        "route": route,
        "loop": loop,
        "retriever": retriever,
        "top_k": top_k,
        "max_steps": max_steps,
    }
    code = run(
        lambda: evaluate_file(settings, file, fields, limit=limit, concurrency=concurrency, out=out)
    )
    raise typer.Exit(code)


@app.command()
def synthesize(
    pipeline: Annotated[
        Literal["autorag", "hanrag", "efficientrag", "compound", "embedded"],
        typer.Argument(help="A paper's data synthesis, or embedded: rows for the default model."),
    ],
    input: Annotated[
        Path,
        typer.Option(
            exists=True, readable=True, help="Items, JSON Lines; embedded: a folder of sets."
        ),
    ],
    output: Annotated[
        Path, typer.Option(dir_okay=False, help="Rows, JSON Lines; beside it a report, a journal.")
    ],
    teacher: Annotated[
        str, typer.Option(help="An engine of the settings, or rules: none, patterns in passages.")
    ] = "default",
    model: Annotated[str | None, typer.Option(help="The teacher's model at its engine.")] = None,
    collection: Annotated[
        str | None, typer.Option(help="What the pipeline searches, where it does.")
    ] = None,
    templates: Annotated[
        str | None, typer.Option(help="Prompts of the rows: compact, full or a folder.")
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="Questions that no row may ask, JSON Lines."
        ),
    ] = None,
    heldout: Annotated[
        bool, typer.Option("--heldout", help="Rows to test with, of what is never trained on.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many items.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Items at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    price_prompt: Annotated[float, typer.Option(help="Of a million prompt tokens.")] = 0.0,
    price_completion: Annotated[float, typer.Option(help="Of a million written tokens.")] = 0.0,
    config: Config = None,
    data: Data = None,
) -> None:
    """Make training data by a teacher, as a paper says; the same command goes on where it ended.

    Exit code 1 where no item gave a row: the table says why.
    """
    from service.synthesis.command import Options, synthesize_file  # noqa: PLC0415
    from service.synthesis.report import Prices  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("warning")
    if pipeline == "embedded":
        from service.synthesis.embedded.command import write_mixture  # noqa: PLC0415

        if teacher != "rules" or heldout:
            fail("synthesize embedded makes training rows by rules: --teacher rules, no --heldout")
        try:
            counts = write_mixture(
                input, output, rows=limit, seed=seed, templates=templates,
                exclude=tuple(exclude or ()),
            )  # fmt: skip
        except RevelatorError as error:
            fail(error.detail)
        raise typer.Exit(0 if counts.rows else 1)
    settings = settings_from(config, data_dir=data)
    options = Options(
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


@app.command()
def tune(
    loop: Annotated[Literal["dragin"], typer.Argument(help="The loop whose threshold is swept.")],
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, readable=True, help="JSONL: question, answer or answers."
        ),
    ],
    config: Config = None,
    data: Data = None,
    collection: Collection = None,
    retriever: RetrieverOption = "bm25",
    top_k: TopK = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="To try; may be repeated. Default 0.4 to 1.6.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = 200,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
) -> None:
    """Ask a file's questions at several thresholds; show EM against retrievals, name the best."""
    from service.evaluation.tuning import THRESHOLDS, tune_dragin  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("warning")
    settings = settings_from(config, data_dir=data)
    fields = {"collection": collection, "route": "single", "retriever": retriever, "top_k": top_k}
    tried = threshold or THRESHOLDS
    work = partial(tune_dragin, settings, file, fields, thresholds=tried, limit=limit)
    raise typer.Exit(run(lambda: work(concurrency=concurrency)))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def worker(
    context: typer.Context,
    model: str,
    gpus: Annotated[
        str | None, typer.Option(help="Comma-separated: a worker for each, at ports from --port.")
    ] = None,
    port: Annotated[int, typer.Option(help="Of the first worker.")] = 8000,
    lora: Annotated[
        list[str] | None, typer.Option(help="An adapter, NAME=PATH; may be repeated.")
    ] = None,
) -> None:
    """Serve MODEL by vLLM with our plugin; further options go to `vllm serve` as they are.

    Runs in an environment that has vLLM: pip install 'revelator[vllm]'.
    """
    from service.generation import launching  # noqa: PLC0415

    try:
        options = [*launching.lora_options(lora or []), *context.args]
        one = launching.worker_command(model, options, os.environ)
        if gpus:
            workers = launching.one_per_gpu(one, gpus.split(","), port)
            raise typer.Exit(launching.run_workers(workers, typer.echo))
        launching.run_worker(one.with_options("--port", str(port)), typer.echo)
    except RevelatorError as error:
        fail(error.detail)


@app.command()
def check(
    config: Config = None,
    data: Data = None,
    collection: Annotated[
        str | None, typer.Option(help="Compare this collection's manifest and stores instead.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair differences.")] = False,
) -> None:
    """Show what is configured, what can be reached, and what is missing.

    With --collection: the passages of which BM25 store, dense store and manifest do not agree.
    """
    from service.checking import check_in_terminal  # noqa: PLC0415
    from service.retrieval.catalog.upkeep_command import run_check  # noqa: PLC0415
    from service.telemetry.logs import configure_logging  # noqa: PLC0415

    configure_logging("error")
    if repair and collection is None:
        fail("--repair needs --collection NAME")
    settings = settings_from(config, data_dir=data)
    if collection is None:
        raise typer.Exit(run(lambda: check_in_terminal(settings)))
    raise typer.Exit(run(lambda: run_check(settings, collection, repair=repair)))


app.command()(train)
app.add_typer(collections, name="collections")
app.command("compile")(compile_model)


def main() -> None:
    """Entry point of the `revelator` command."""
    app()
