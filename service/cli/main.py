"""The `revelator` command: all its subcommands, which import their dependencies when they run, so
that `--help` is fast."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from service import __version__
from service.cli.examples import add_examples
from service.cli.options import (
    Config,
    Data,
    IngestOptions,
    begin,
    fail,
    run,
    show_error,
    with_options,
)
from service.core.errors import RevelatorError
from service.core.settings import Settings
from service.evaluation.options import EvaluationOptions
from service.options import Collection, QuestionOptions, SearchOptions, Url
from service.workshop.synthesis.options import PipelineName, SynthesisOptions

app = typer.Typer(
    name="revelator",
    help="Answer questions over your own passages, including questions that need several searches.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Answer questions over your own passages, including questions that need several searches."""


@app.command()
def serve(
    config: Config = None,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Host to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. Default: 8000. 0 selects a free port.")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure", help="Allow listening on hosts other than loopback without API keys."
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Log level.")
    ] = "warning",
) -> None:
    """Start the HTTP server. Without settings, it runs embedded, over a sample corpus."""
    from service.cli.serve import run_server  # noqa: PLC0415
    from service.cli.terminal import print_banner  # noqa: PLC0415

    settings = begin(
        log_level, config, data, server__host=host, server__port=port, server__insecure=insecure
    )
    started = partial(print_banner, keys=settings.server.has_keys)
    try:
        run_server(settings, on_started=started)
    except RevelatorError as error:
        fail(error.detail)
    except KeyboardInterrupt:  # before the server handles signals
        raise typer.Exit(130) from None


@app.command()
@with_options()
def ask(
    asked: QuestionOptions,
    question: Annotated[str, typer.Argument(help="The question.")],
    settings: Settings,
    url: Url = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the answer's JSON body.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="File for the events. `revelator replay` prints them again."
        ),
    ] = None,
) -> None:
    """Ask a question and show each step. Uses the running server, if there is one."""
    from service.cli.ask import ask_in_terminal  # noqa: PLC0415

    fields = {"question": question, **asked.fields}
    code = run(lambda: ask_in_terminal(settings, fields, url=url, as_json=as_json, trace=trace))
    raise typer.Exit(code)


@app.command()
@with_options()
def search(
    asked: SearchOptions,
    query: Annotated[str, typer.Argument(help="What to search for.")],
    settings: Settings,
    url: Url = None,
    collection: Collection = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the passages as JSON.")] = False,
) -> None:
    """Search, and print the best passages, without an answer. Uses the running server, if there is
    one."""
    from service.cli.ask import search_in_terminal  # noqa: PLC0415

    fields = {"query": query, "collection": collection, **asked.fields}
    raise typer.Exit(run(lambda: search_in_terminal(settings, fields, url=url, as_json=as_json)))


@app.command()
@with_options()
def mcp(settings: Settings, url: Url = None) -> None:
    r"""Serve the Model Context Protocol on standard input and output, for agents.

    It offers answers, searches and collections, and uses the running server, if there is one. Needs
    the extra: pip install '.\[mcp]' in the checkout.
    """
    from service.api.mcp.tools import LACKING, installed  # noqa: PLC0415

    if not installed():
        fail(LACKING)
    from service.cli.mcp import serve_stdio  # noqa: PLC0415

    run(lambda: serve_stdio(settings, url))


@app.command()
@with_options()
def chat(asked: QuestionOptions, settings: Settings, url: Url = None) -> None:
    """Hold a conversation: each question is answered with regard to the messages before it.

    A question that cannot be understood alone is first rewritten by the model. Uses the running
    server, if there is one. Ctrl-D or an empty line ends the conversation.
    """
    from service.cli.ask import chat_in_terminal  # noqa: PLC0415

    raise typer.Exit(run(lambda: chat_in_terminal(settings, asked.fields, url=url)))


@app.command()
@with_options()
def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders; `-` reads standard input. Formats: text, Markdown, CSV, TSV; "
            "HTML, PDF, DOCX, XLSX, PPTX (extra `documents`); PNG, JPEG, TIFF (extra `ocr`); "
            "JSONL, Parquet (extra `parquet`), BEIR folders, FlashRAG's corpora, HippoRAG's JSON, "
            "DPR's Wikipedia (psgs_w100.tsv); also compressed (.gz, .zst)."
        ),
    ],
    options: IngestOptions,
    settings: Settings,
    watched: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Go on and follow the folders: files that change are added again, and documents "
            "of files that are removed are deleted, where their ids begin with the file's name. A "
            "folder that is away or empty removes nothing.",
        ),
    ] = False,
) -> None:
    """Add files to a collection. Running the command again adds only what is missing.

    Invalid rows are reported with file and line, and skipped.

    If an id occurs twice, the later row replaces the earlier one. Pages and sections that a file no
    longer has are removed. Documents of deleted files stay in the collection, until you use
    --replace, or unless --watch is running.
    """
    from service.cli.ingest import run_ingest, watch  # noqa: PLC0415

    if watched and options.replace:
        fail("--watch follows changes, and --replace replaces everything; use one of them.")
    ingested = partial(run_ingest, options=options, settings=settings)
    code = run(
        lambda: watch(files, ingested) if watched else ingested(files),
        interrupted="Interrupted. Run the same command again to continue.",
    )
    raise typer.Exit(code)


@app.command()
@with_options()
def evaluate(options: EvaluationOptions, settings: Settings) -> None:
    """Answer the questions of datasets by several methods, score the answers and compare them."""
    from service.evaluation.command import evaluate_datasets  # noqa: PLC0415

    raise typer.Exit(run(lambda: evaluate_datasets(settings, options)))


@app.command()
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


@app.command()
def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="File written by `ask --trace` or `evaluate --trace`."
        ),
    ],
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


@app.command()
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


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def worker(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Folder of the model, or its name on the Hugging Face hub.")
    ],
    gpus: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated GPU ids. One worker is started for each, on consecutive ports "
            "that begin with --port."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the first worker.")] = 8000,
    lora: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter as NAME=PATH; may be repeated.")
    ] = None,
) -> None:
    r"""Serve MODEL with vLLM and Revelator's plugin. Other options are passed to `vllm serve`.

    Needs an environment with vLLM: pip install '.\[vllm]' in the checkout.
    """
    from service.engines import vllm_command  # noqa: PLC0415

    try:
        options = [*vllm_command.lora_options(lora or []), *context.args]
        one = vllm_command.worker_command(model, options, os.environ)
        if gpus:
            workers = vllm_command.one_per_gpu(one, gpus.split(","), port)
            raise typer.Exit(vllm_command.run_workers(workers, typer.echo))
        vllm_command.run_worker(one.with_options("--port", str(port)), typer.echo)
    except RevelatorError as error:
        fail(error.detail)


@app.command()
@with_options("error")
def check(
    settings: Settings,
    collection: Annotated[
        str | None,
        typer.Option(help="Check this collection instead: compare its manifest and its stores."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair differences. Needs --collection.")
    ] = False,
) -> None:
    """Show what is configured, what is reachable and what is missing.

    With --collection: show differences between the manifest, the BM25 store and the dense store.
    """
    from service.cli.check import check_in_terminal  # noqa: PLC0415
    from service.cli.upkeep import check_collection  # noqa: PLC0415

    if repair and collection is None:
        fail("--repair needs a collection. Add --collection NAME.")
    if collection is None:
        raise typer.Exit(run(lambda: check_in_terminal(settings)))
    raise typer.Exit(run(lambda: check_collection(settings, collection, repair=repair)))


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Name of the tenant that the key is for.")],
    rights: Annotated[
        str, typer.Option(help="Rights of the key: ask, write and administer, separated by commas.")
    ] = "ask",
    collections: Annotated[
        str,
        typer.Option(
            help="Collections that the key may use: names or patterns, separated by commas."
        ),
    ] = "*",
    principals: Annotated[
        str,
        typer.Option(
            help="Users or groups, separated by commas: of documents with `access`, the key sees "
            "those that name one of them; `*`: all documents."
        ),
    ] = "",
    requests: Annotated[
        int | None, typer.Option(help="Maximum number of requests per minute.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="Maximum number of questions per minute.")
    ] = None,
) -> None:
    """Create an API key, and print its entry for the tenants file on standard output.

    The key itself is printed on standard error and is not stored. Example:
    `revelator key search-team --rights ask,write >> tenants.toml`, with `server.tenants_file` set.
    """
    from service.api.tenants import digest, new_key, parse_tenants  # noqa: PLC0415

    made = new_key()
    entry = "\n".join(
        [
            "[[tenants]]",
            f"name = {json.dumps(name, ensure_ascii=False)}",
            f"key_sha256 = {_listed(digest(made.encode()))}",
            f"collections = {_listed(collections)}",
            f"rights = {_listed(rights)}",
            *([f"principals = {_listed(principals)}"] if principals else []),
            *([f"requests_per_minute = {requests}"] if requests is not None else []),
            *([f"questions_per_minute = {questions}"] if questions is not None else []),
        ]
    )
    try:
        parse_tenants(entry)
    except ValueError as error:
        fail(f"the tenant's entry is not valid: {error}; correct the name or the options")
    typer.echo(entry)
    typer.echo(f"The key, shown only once: {made}", err=True)


def _listed(texts: str) -> str:
    parts = [part.strip() for part in texts.split(",")]
    return json.dumps([*filter(None, parts)], ensure_ascii=False)


RecipeName = Literal["sft", "router", "extractor", "labeler", "filter"]


@app.command()
def train(
    recipe: Annotated[
        RecipeName,
        typer.Argument(
            help="Model to train: sft (a language model), router, extractor, labeler or filter "
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


Name = Annotated[str, typer.Argument(help="Name of the collection.")]

collections = typer.Typer(
    help="List, show and delete collections. Uses the running server, if there is one.",
    no_args_is_help=True,
)


feedback = typer.Typer(help="What people said about answers.", no_args_is_help=True)


@feedback.callback()
def _feedback() -> None: ...


@feedback.command()
@with_options("error")
def export(settings: Settings) -> None:
    """Print questions whose right answer people named, as rows for `revelator evaluate`.

    An answer that was liked is right, unless another was expected. Only the latest word about an
    answer counts.
    """
    import orjson  # noqa: PLC0415

    from service.api.feedback import rows_for_evaluation  # noqa: PLC0415

    for row in rows_for_evaluation(settings.data_dir):
        typer.echo(orjson.dumps(row).decode())


@collections.command("list")
@with_options("error")
def list_all(settings: Settings, url: Url = None) -> None:
    """List all collections with their counts and embedding models."""
    from service.cli.upkeep import list_collections  # noqa: PLC0415

    run(lambda: list_collections(settings, url=url))


@collections.command()
@with_options("error")
def show(name: Name, settings: Settings, url: Url = None) -> None:
    """Show a collection's counts, metadata fields, text analysis and embedding model."""
    from service.cli.upkeep import show_collection  # noqa: PLC0415

    run(lambda: show_collection(settings, name, url=url))


@collections.command()
@with_options("error")
def delete(
    name: Name,
    settings: Settings,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete without asking for confirmation.")
    ] = False,
    url: Url = None,
) -> None:
    """Delete a collection with all its documents, including those in Elasticsearch and Qdrant."""
    from service.cli.upkeep import delete_collection  # noqa: PLC0415

    if not yes:
        typer.confirm(f"Delete collection {name} and all its documents?", abort=True)
    run(lambda: delete_collection(settings, name, url=url))


app.add_typer(collections, name="collections")
app.add_typer(feedback, name="feedback")
add_examples(app)


def main() -> None:
    """Entry point of the `revelator` command."""
    app(prog_name="revelator")
