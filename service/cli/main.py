"""The `revelator` command. Subcommands import their dependencies when they run, which keeps
`--help` fast."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from service import __version__
from service.cli.administration import collections, feedback, key
from service.cli.evaluation import evaluate, explain, replay
from service.cli.examples import add_examples
from service.cli.options import Config, Data, IngestOptions, begin, fail, run, with_options
from service.cli.workshop import synthesize, train
from service.core.errors import RevelatorError
from service.core.settings import Settings
from service.options import Collection, QuestionOptions, SearchOptions, Url

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


app.command()(evaluate)
app.command()(explain)
app.command()(replay)
app.command()(synthesize)


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


app.command()(key)
app.command()(train)
app.add_typer(collections, name="collections")
app.add_typer(feedback, name="feedback")
add_examples(app)


def main() -> None:
    """Entry point of the `revelator` command."""
    app(prog_name="revelator")
