"""The examples and the exit codes that `--help` shows."""

from __future__ import annotations

from typing import Final

import typer

EXIT_CODES: Final = (
    "Exit codes: 0: success. 1: partial success, or a negative result (a question failed, "
    "documents were invalid, a check found a problem). 2: the command could not start or gave up, "
    "because of its arguments, the settings, a file or a server; the message says what to do. 130 "
    "and 143: interrupted by Ctrl-C and by SIGTERM."
)
EXAMPLES: Final = {
    "serve": "revelator serve --port 8080",
    "ask": 'revelator ask "When was the writer of Billy Elliot born?" --trace billy.jsonl',
    "chat": "revelator chat --collection sample",
    "search": 'revelator search "parental leave" --collection default --top-k 5',
    "mcp": "revelator mcp --url http://127.0.0.1:8000",
    "ingest": "revelator ingest docs/ manual.pdf --collection default",
    "evaluate": "revelator evaluate questions.jsonl --methods single,auto --out results",
    "replay": "revelator replay billy.jsonl",
    "explain": "revelator explain traces",
    "synthesize": "revelator synthesize hanrag --input questions.jsonl --output rows.jsonl",
    "train": "revelator train router --preset shipped --data rows.jsonl --out run",
    "worker": "revelator worker your/instruct-model --gpus 0,1",
    "check": "revelator check --collection default --repair",
    "key": "revelator key search-team --rights ask,write",
    "list": "revelator collections list",
    "show": "revelator collections show default",
    "delete": "revelator collections delete default --yes",
    "export": "revelator feedback export > rows.jsonl",
}


def add_examples(app: typer.Typer) -> None:
    """Add an example to the help of each command, and the exit codes to the help of `revelator`."""
    app.info.epilog = EXIT_CODES
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        if name in EXAMPLES:
            command.epilog = f"Example: {EXAMPLES[name]}"
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance)
